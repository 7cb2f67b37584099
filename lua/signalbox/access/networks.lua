-- Networks of clients: whether an address is in one of them.

local ffi = require("ffi")

local C, ffi_string = ffi.C, ffi.string
local byte, find, match, sub = string.byte, string.find, string.match, string.sub
local floor, tonumber = math.floor, tonumber

ffi.cdef("int inet_pton(int family, const char *text, void *address);")

local _M = {}

local AF_INET, AF_INET6 = 2, 10
local buffer = ffi.new("unsigned char[16]")
-- The prefix of an IPv4 address in an IPv6 one.
local MAPPED = ("\0"):rep(10) .. "\255\255"

-- Reads "10.0.0.0/8", "fd00::/8", or an address. Returns nil for other texts.
function _M.parse(text)
    local address, bits = match(text, "^([%x:.]+)/(%d+)$")
    address = address or match(text, "^[%x:.]+$")
    if not address then
        return nil
    end
    local v6 = find(address, ":", 1, true) ~= nil
    if C.inet_pton(v6 and AF_INET6 or AF_INET, address, buffer) ~= 1 then
        return nil
    end
    local size = v6 and 16 or 4
    bits = bits and tonumber(bits) or size * 8
    if bits > size * 8 then
        return nil
    end
    local bytes = ffi_string(buffer, size)
    if v6 and bits >= 96 and sub(bytes, 1, 12) == MAPPED then
        -- IPv4 addresses in the form that contain() compares.
        size, bits, bytes = 4, bits - 96, sub(bytes, 13)
    end
    local whole, rest = floor(bits / 8), bits % 8
    return {
        size = size,
        whole = whole,
        prefix = sub(bytes, 1, whole),
        -- The last, partial byte of the network without its host bits.
        divisor = rest > 0 and 2 ^ (8 - rest) or nil,
        part = rest > 0 and floor(byte(bytes, whole + 1) / 2 ^ (8 - rest)) or nil,
    }
end

-- Whether one of the networks contains the address, which is binary: 4 or 16 bytes.
function _M.contain(networks, address)
    if #address == 16 and sub(address, 1, 12) == MAPPED then
        address = sub(address, 13)
    end
    for i = 1, #networks do
        local one = networks[i]
        if #address == one.size and sub(address, 1, one.whole) == one.prefix
            and (not one.part or floor(byte(address, one.whole + 1) / one.divisor) == one.part)
        then
            return true
        end
    end
    return false
end

return _M
