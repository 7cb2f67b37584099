-- The valid forms of an instance's address: `127.0.0.1:9001`, `[::1]:9001`, `unix:/run/app.sock`.
-- The table may be written by hand, and nginx resolves no names in the balancer. Any other form is ignored when the
-- record is made, so that no request fails because of it.
--
-- The edge's own listeners, the daemons and the routes replica are never instances, whatever the table contains: they
-- trust what comes from this machine. The pacemaker has the same rules (crates/route-table/src/own.rs).

local ffi = require("ffi")

local C, new, ffi_string = ffi.C, ffi.new, ffi.string
local byte, find, gmatch, gsub, match = string.byte, string.find, string.gmatch, string.gsub, string.match
local rep, sub = string.rep, string.sub
local tonumber = tonumber

ffi.cdef([[
int inet_pton(int af, const char *src, void *dst);
int socket(int domain, int type, int protocol);
int bind(int fd, const void *address, unsigned int length);
int close(int fd);
]])
local AF_INET, AF_INET6, SOCK_DGRAM = 2, 10, 2
local MAPPED_V4 = rep("\0", 10) .. "\255\255"
local UNSPECIFIED, LOOPBACK_V6 = rep("\0", 16), rep("\0", 15) .. "\1"
local UNSPECIFIED_V4 = MAPPED_V4 .. rep("\0", 4)

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

-- `/var/run` is `/run`, and both spellings reach the same socket.
local function canonical(socket)
    return (gsub(socket, "^unix:/var/run/", "unix:/run/"))
end

-- Whether an address belongs to this machine: a socket can be bound only to such an address. No packet is sent.
local is_local
do
    local name = new("unsigned char[28]") -- sockaddr_in6, and at its beginning sockaddr_in
    local family = ffi.cast("unsigned short *", name)
    is_local = function(bytes)
        local is_v4 = sub(bytes, 1, 12) == MAPPED_V4
        ffi.fill(name, 28)
        family[0] = is_v4 and AF_INET or AF_INET6
        if is_v4 then
            ffi.copy(name + 4, sub(bytes, 13), 4)
        else
            ffi.copy(name + 8, bytes, 16)
        end
        local fd = C.socket(family[0], SOCK_DGRAM, 0)
        if fd < 0 then
            return false
        end
        local bound = C.bind(fd, name, is_v4 and 16 or 28) == 0
        C.close(fd)
        return bound
    end
end

local function split(address)
    local ip, port = match(address, "^%[?([^%[%]]*)%]?:(%d+)$")
    return ip and bytes_of(ip), tonumber(port)
end

-- Reserved unix sockets, ports on loopback, ports on every address of this machine, and pairs of address and port.
local sockets, loopback_ports, local_ports, pairs_of = {}, {}, {}, {}

-- addresses: text, separated by spaces. Replaces what was reserved before.
function _M.reserve(addresses)
    sockets, loopback_ports, local_ports, pairs_of = {}, {}, {}, {}
    for one in gmatch(addresses, "%S+") do
        if sub(one, 1, 5) == "unix:" then
            sockets[canonical(one)] = true
        else
            local bytes, port = split(one)
            -- A listener without an address listens on all. A name cannot be compared, so it is treated as this
            -- machine.
            port = port or tonumber(one)
            if port and (not bytes or is_loopback(bytes)) then
                loopback_ports[port] = true
                if tonumber(one) or bytes == UNSPECIFIED or bytes == UNSPECIFIED_V4 then
                    local_ports[port] = true
                end
            elseif port then
                pairs_of[bytes .. port] = true
            end
        end
    end
end

function _M.is_reserved(address)
    if sub(address, 1, 5) == "unix:" then
        return sockets[canonical(address)] == true
    end
    local bytes, port = split(address)
    if not bytes then
        return false
    end
    if is_loopback(bytes) then
        return loopback_ports[port] == true
    end
    return pairs_of[bytes .. port] == true or (local_ports[port] == true and is_local(bytes))
end

-- Connects a socket to an address. Returns true, or nil and the error.
function _M.connect(socket, address)
    if sub(address, 1, 5) == "unix:" then
        return socket:connect(address)
    end
    local host, port = match(address, "^(.+):(%d+)$")
    if not host then
        return nil, "the address must be host:port or unix:/path"
    end
    return socket:connect(host, tonumber(port))
end

function _M.valid(address)
    if sub(address, 1, 5) == "unix:" then
        local path = sub(address, 6)
        -- nginx ends the path at a colon. An empty segment, or one of dots, would be another spelling of a socket.
        return #path > 1 and #path <= MAX_UNIX_PATH and find(path, "^/[^%c%s:]+$") ~= nil
            and not find(path .. "/", "/%.?%.?/")
    end
    local ip, port = match(address, "^([%d%.]+):(%d+)$")
    if ip then
        return valid_v4(ip) and valid_port(port)
    end
    ip, port = match(address, "^%[([%x:%.]+)%]:(%d+)$")
    return ip ~= nil and find(ip, ":", 1, true) ~= nil and valid_port(port)
end

return _M
