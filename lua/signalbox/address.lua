-- The valid forms of an instance's address: `127.0.0.1:9001`, `[::1]:9001`, `unix:/run/app.sock`.
-- The table may be written by hand, and nginx resolves no names in the balancer. Any other form is ignored when the
-- record is made, so that no request fails because of it.
--
-- The edge's own listeners, the daemons and the routes replica are never instances, whatever the table contains: they
-- The edge's own listeners, the daemons and the routes replica are never instances, whatever the table contains: they

local ffi = require("ffi")

local C, new, ffi_string = ffi.C, ffi.new, ffi.string
local byte, find, gmatch, match, rep = string.byte, string.find, string.gmatch, string.match, string.rep
local sub = string.sub
local tonumber = tonumber

ffi.cdef([[
int inet_pton(int af, const char *src, void *dst);
]])
local AF_INET, AF_INET6 = 2, 10
local MAPPED_V4 = rep("\0", 10) .. "\255\255"
local UNSPECIFIED, LOOPBACK_V6 = rep("\0", 16), rep("\0", 15) .. "\1"

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

-- The 16 bytes of an IP address, IPv4 as mapped IPv6. nil when it is not one.
local buffer = new("unsigned char[16]")
local function bytes_of(ip)
    if C.inet_pton(AF_INET, ip, buffer) == 1 then
        return MAPPED_V4 .. ffi_string(buffer, 4)
    end
    return C.inet_pton(AF_INET6, ip, buffer) == 1 and ffi_string(buffer, 16) or nil
end

-- Whether a connection to the address stays on this machine whichever interface it names: loopback and unspecified.
local function is_loopback(bytes)
    if sub(bytes, 1, 12) == MAPPED_V4 then
        local first = byte(bytes, 13)
        return first == 127 or first == 0
    end
    return bytes == LOOPBACK_V6 or bytes == UNSPECIFIED
end

local function split(address)
    local ip, port = match(address, "^%[?([^%[%]]*)%]?:(%d+)$")
    return ip and bytes_of(ip), tonumber(port)
end

-- Reserved unix sockets, ports on loopback, and pairs of address and port.
local sockets, loopback_ports, pairs_of = {}, {}, {}

-- addresses: text, separated by spaces. Replaces what was reserved before.
function _M.reserve(addresses)
    sockets, loopback_ports, pairs_of = {}, {}, {}
    for one in gmatch(addresses, "%S+") do
        if sub(one, 1, 5) == "unix:" then
            sockets[one] = true
        else
            local bytes, port = split(one)
            -- A listener without an address listens on all. A name cannot be compared and counts as this machine.
            port = port or tonumber(one)
            if port and (not bytes or is_loopback(bytes)) then
                loopback_ports[port] = true
            elseif port then
                pairs_of[bytes .. port] = true
            end
        end
    end
end

function _M.is_reserved(address)
    if sub(address, 1, 5) == "unix:" then
        return sockets[address] == true
    end
    local bytes, port = split(address)
    if not bytes then
        return false
    end
    return (is_loopback(bytes) and loopback_ports[port] or pairs_of[bytes .. port]) == true
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
