-- What nginx has already tried for this request, read from its own variables: state that needs no table of ours on
-- the hot path and survives the way to @full. Only looked at after a failure.

local gmatch, match = string.gmatch, string.match
local var = ngx.var

local _M = {}

-- A set of the addresses tried, and the last of them; nil when none was. nginx separates tries with ", " and, after
-- an internal redirect, with " : "; neither can stand in an address.
function _M.addresses()
    local text = var.upstream_addr
    if not text then
        return nil
    end
    local tried, last
    for address in gmatch(text, "[^ ,][^ ,]+") do
        tried = tried or {}
        tried[address] = true
        last = address
    end
    return tried, last
end

-- The status nginx gave the last try, and whether that try had a connection: without one nothing of the request was
-- sent, and it may go elsewhere whatever its method. A list may end in a separator (a try without an address).
function _M.last()
    local status = match(var.upstream_status or "", "(%d+)[^%d]*$")
    return status, match(var.upstream_connect_time or "", "([%d%.%-]+)[ ,:]*$") ~= "-"
end

return _M
