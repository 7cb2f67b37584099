-- CRC-32 (IEEE 802.3, as in zlib) that can be fed in pieces; ngx.crc32_long wants the whole text, and a snapshot of a
-- million hosts is not built in memory to be summed.

local bit = require("bit")

local band, bxor, rshift, bnot, tobit = bit.band, bit.bxor, bit.rshift, bit.bnot, bit.tobit
local byte = string.byte

local table_of = {}
for n = 0, 255 do
    local c = n
    for _ = 1, 8 do
        c = band(c, 1) == 1 and bxor(rshift(c, 1), 0xEDB88320) or rshift(c, 1)
    end
    table_of[n] = tobit(c)
end

local _M = { START = 0 }

-- The sum after `text`, given the sum before it.
function _M.update(sum, text)
    local c = bnot(sum)
    for i = 1, #text do
        c = bxor(table_of[band(bxor(c, byte(text, i)), 0xFF)], rshift(c, 8))
    end
    return bnot(c)
end

function _M.hex(sum)
    return bit.tohex(sum)
end

return _M
