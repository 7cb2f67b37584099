-- What nginx has already tried for this request, read from its own variables: state that needs no table of ours on
-- the hot path and survives the way to @full. Only looked at after a failure.

local gmatch, match = string.gmatch, string.match
local var = ngx.var

local _M = {}

-- A set of the addresses tried, the last of them, and how many there are; nil when none was. An address counts once:
-- when a connection that was kept alive turns out to be closed, nginx asks for one try more than it was granted, and
-- that must cost no other instance its turn. nginx separates tries with ", " and, after an internal redirect, with " :
-- "; neither can stand in an address.
function _M.addresses()
    local text = var.upstream_addr
    if not text then
        return nil
    end
    local tried, last, count = nil, nil, 0
    for address in gmatch(text, "[^ ,][^ ,]+") do
        tried = tried or {}
        if not tried[address] then
            tried[address] = true
            count = count + 1
        end
        last = address
    end
    return tried, last, count
end

-- The status of the last try (nil when it had none, for the client went away), and whether that try had a connection:
-- without one nothing of the request was sent, and it may go elsewhere whatever its method. A list may end in a
-- separator (a try without an address).
function _M.last()
    local status = match(var.upstream_status or "", "([%d%-]+)[ ,:]*$")
    status = status ~= "-" and status or nil
    return status, match(var.upstream_connect_time or "", "([%d%.%-]+)[ ,:]*$") ~= "-"
end

-- For the balancer in a retry: whether the try before had a connection. The one that is about to begin stands in the
-- list already, but has no instance yet, which nginx writes like an internal redirect: a separator with nothing behind.
function _M.was_connected()
    return match(var.upstream_connect_time or "", "([%d%.%-]+) : $") ~= "-"
end

return _M
