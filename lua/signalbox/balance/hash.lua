-- Consistent hashing by rendezvous hashing (highest random weight, Thaler and Ravishankar 1998). When an instance is
-- removed, its keys are spread evenly over the others and no other key moves; a new instance takes an even part from
-- all. A ring needs hundreds of points per instance for that, and a table to rebuild at each change. A host has few
-- instances, so the scores are computed for each request.
--
-- All workers and routers choose the same instance, because only the key and the addresses are used.

local bit = require("bit")

local bxor, rshift, tobit = bit.bxor, bit.rshift, bit.tobit
local crc32 = ngx.crc32_short
local log = math.log
local floor = math.floor

local _M = {}

-- The low 32 bits of a product. A double holds 53 bits, so one factor is split into halves.
local function multiply(a, b)
    local low, high = a % 65536, floor(a / 65536)
    return tobit((high * b % 65536) * 65536 + low * b)
end

-- The finalizer of MurmurHash3. CRC alone is linear, so the scores of two instances would be correlated.
local function mix(h)
    h = bxor(h, rshift(h, 16))
    h = multiply(h % 4294967296, 0x85ebca6b)
    h = bxor(h, rshift(h, 13))
    h = multiply(h % 4294967296, 0xc2b2ae35)
    return bxor(h, rshift(h, 16))
end

-- Returns address → its number in the scores; stored with the list.
function _M.seeds(list)
    local seeds = {}
    for i = 1, #list do
        seeds[list[i]] = mix(crc32(list[i]))
    end
    return seeds
end

local function score(key, seed)
    return mix(bxor(key, seed)) % 4294967296
end

-- The address for `key` (text) among `list`; nil when the list is empty.
function _M.pick(list, seeds, key)
    local hashed = mix(crc32(key))
    local best, most = nil, -1
    for i = 1, #list do
        local address = list[i]
        local own = score(hashed, seeds[address])
        if own > most then
            best, most = address, own
        end
    end
    return best
end

-- The same with weights: a score u in (0, 1) becomes weight / -ln(u), so that each instance gets its share of the keys.
-- When a weight grows, keys move only to that instance, and none move between others.
function _M.pick_weighted(list, seeds, key, weight_of, a, b)
    local hashed = mix(crc32(key))
    local best, most = nil, -1
    for i = 1, #list do
        local address = list[i]
        local weight = weight_of(address, a, b)
        if weight > 0 then
            local own = weight / -log((score(hashed, seeds[address]) + 0.5) / 4294967296)
            if own > most then
                best, most = address, own
            end
        end
    end
    return best
end

return _M
