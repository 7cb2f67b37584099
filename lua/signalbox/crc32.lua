-- CRC-32 (IEEE 802.3), computed in pieces by zlib; ngx.crc32_long needs the whole text, and the snapshot of a million
-- hosts is never built in memory.
--
-- nginx's gzip module links zlib into the nginx binary itself, so its symbols are global whether the Lua module is
-- compiled in or loaded (Debian). A binary that has zlib linked statically hides them; the system's library is used
-- then.

local ffi = require("ffi")

local format, tonumber = string.format, tonumber

ffi.cdef("unsigned long crc32(unsigned long sum, const char *text, unsigned int length);")

local has_symbol = pcall(function()
    return ffi.C.crc32
end)
local C = has_symbol and ffi.C or ffi.load("libz.so.1")

local _M = { START = 0 }

-- The checksum after `text`, given the checksum before it.
function _M.update(sum, text)
    return tonumber(C.crc32(sum, text, #text))
end

function _M.hex(sum)
    return format("%08x", sum)
end

return _M
