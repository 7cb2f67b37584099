-- Lua that runs inside nginx: LuaJIT with the ngx table, and nothing global of our own.
std = "ngx_lua"
max_line_length = 150
files["lua/spec"] = { std = "ngx_lua" }
