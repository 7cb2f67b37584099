-- The tries that nginx has already made for this request, read from its own variables. The hot path needs no table for
-- them, and they survive the redirect to @full. They are read only after a failure.

local gmatch, match = string.gmatch, string.match
local tonumber = tonumber
local var = ngx.var

local _M = {}

-- How many bytes of an answer nginx reads in search of the end of its headers; set at start.
_M.max_header_bytes = 16384

-- Returns the set of addresses tried, the last one, and how many there are; nil when there are none. An address counts
-- once: when a kept-alive connection turns out to be closed, nginx makes one try more than it was granted, and that
-- must not take away another instance's turn. nginx separates tries with ", " and, after an internal redirect, with " :
-- "; no address contains these.
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

-- Returns the status of the last try (nil when it has none, because the client closed the connection), and whether that
-- try had a connection. Without one, nothing of the request was sent, so any method may be repeated. A list may end in
-- a separator (a try without an address).
function _M.last()
    local status = match(var.upstream_status or "", "([%d%-]+)[ ,:]*$")
    status = status ~= "-" and status or nil
    return status, match(var.upstream_connect_time or "", "([%d%.%-]+)[ ,:]*$") ~= "-"
end

-- For a retry in the balancer: whether the previous try had a connection. The new try is already in the list, but has
-- no instance yet, which nginx writes like an internal redirect: as a separator with nothing after it.
function _M.was_connected()
    return match(var.upstream_connect_time or "", "([%d%.%-]+) : $") ~= "-"
end

-- Whether the last try failed because the headers of the answer were larger than the edge accepts. nginx gives such a
-- try the status 502, as if the connection had broken, but it has filled the buffer and found no end of the headers.
function _M.headers_too_large()
    local received = tonumber(match(var.upstream_bytes_received or "", "(%d+)[ ,:]*$"))
    return received ~= nil and received >= _M.max_header_bytes
        and match(var.upstream_header_time or "", "([%d%.%-]+)[ ,:]*$") == "-"
end

return _M
