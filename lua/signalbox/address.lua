-- The valid forms of an instance's address: `127.0.0.1:9001`, `[::1]:9001`, `unix:/run/app.sock`.
-- The table may be written by hand, and nginx resolves no names in the balancer. Any other form is ignored when the
-- record is made, so that no request fails because of it.

local find, match = string.find, string.match
local sub = string.sub
local tonumber = tonumber

local _M = {}

local MAX_UNIX_PATH = 107 -- of sockaddr_un

local function valid_port(port)
    local n = tonumber(port)
    return n ~= nil and n >= 1 and n <= 65535 and #port <= 5
end

local function valid_v4(ip)
    local a, b, c, d = match(ip, "^(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)$")
    return a ~= nil and tonumber(a) < 256 and tonumber(b) < 256 and tonumber(c) < 256 and tonumber(d) < 256
end

function _M.valid(address)
    if sub(address, 1, 5) == "unix:" then
        local path = sub(address, 6)
        -- nginx ends the path at a colon.
        return #path > 1 and #path <= MAX_UNIX_PATH and find(path, "^/[^%c%s:]+$") ~= nil
    end
    local ip, port = match(address, "^([%d%.]+):(%d+)$")
    if ip then
        return valid_v4(ip) and valid_port(port)
    end
    ip, port = match(address, "^%[([%x:%.]+)%]:(%d+)$")
    return ip ~= nil and find(ip, ":", 1, true) ~= nil and valid_port(port)
end

return _M
