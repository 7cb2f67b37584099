-- Reads items of a list, in order or backwards, until they have so many bytes.
-- KEYS[1]: list, any
-- ARGV[1]: integer, place of the first item to read
-- ARGV[2]: integer, maximum number of items
-- ARGV[3]: integer, maximum bytes (the first item is read whatever its size)
-- ARGV[4]: integer, 1 to read backwards
-- Returns an array: the items in the order in which they were read; none if there are none.
-- Caller: list_part and list_page

-- Items that are read together, before their bytes are known.
local STEP = 16

local place, left, bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local backwards = ARGV[4] == '1'
local items = {}
while left > 0 and place >= 0 do
  local count = math.min(STEP, left)
  local first = backwards and math.max(place - count + 1, 0) or place
  local part = redis.call('LRANGE', KEYS[1], first, backwards and place or place + count - 1)
  if #part == 0 then break end
  for i = 1, #part do
    local item = part[backwards and #part + 1 - i or i]
    bytes = bytes - #item
    if bytes < 0 and #items > 0 then return items end
    items[#items + 1] = item
  end
  left = left - #part
  place = backwards and first - 1 or place + #part
end
return items
