-- What nginx' Lua module provides, and nothing else.
std = "ngx_lua"
