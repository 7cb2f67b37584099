-- Counts the bytes of the next labels of a machine again, in the order of their names. Changes of labels that were counted
-- are added by labels.lua, so the result is exact. After the last label it replaces the count of the machine.
-- KEYS[1]: hash, machine -> bytes that its recount has found, a space, and the last label that was counted
-- KEYS[2]: hash, owner -> bytes that are stored for it
-- KEYS[3...]: zset, the labels in each state of the machine, by name
-- ARGV[1]: string, the machine
-- ARGV[2]: string, the prefix of the keys of its labels' records
-- ARGV[3]: integer, the maximum number of labels that are counted
-- Returns 1 after the last label, or if no recount of the machine is under way; else 0
-- Caller: LabelBytes::count_next
local recounts, owners, FIRST_STATE = KEYS[1], KEYS[2], 3
local machine, prefix, max = ARGV[1], ARGV[2], tonumber(ARGV[3])
local owner = 'machine:' .. machine
-- As in labels.lua: bytes that the indexes need for a label, about.
local INDEX_BYTES = 256

-- Byte by byte, as Redis orders names. Lua's own order depends on the locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local one, other = string.byte(a, i), string.byte(b, i)
    if one ~= other then return one < other end
  end
  return #a < #b
end

-- The next names after `last` in any of the states.
local function next_names(last)
  local names, seen = {}, {}
  for i = FIRST_STATE, #KEYS do
    local found = redis.call('ZRANGE', KEYS[i], '(' .. last, '+', 'BYLEX', 'LIMIT', 0, max)
    for n = 1, #found do
      if not seen[found[n]] then names[#names + 1], seen[found[n]] = found[n], true end
    end
  end
  table.sort(names, is_before)
  return names
end

local bytes, last = string.match(redis.call('HGET', recounts, machine) or '', '^(%-?%d+) (.*)$')
if not bytes then return 1 end
bytes = tonumber(bytes)
-- Fails before the first write if the key has another type.
redis.call('HEXISTS', owners, owner)
local names = next_names(last)
for n = 1, math.min(#names, max) do
  local length = redis.call('STRLEN', prefix .. names[n] .. ':data')
  if length > 0 then bytes = bytes + length + INDEX_BYTES end
end
if #names > 0 then
  last = names[math.min(#names, max)]
  redis.call('HSET', recounts, machine, string.format('%.0f %s', bytes, last))
  return 0
end
redis.call('HDEL', recounts, machine)
if bytes > 0 then
  redis.call('HSET', owners, owner, string.format('%.0f', bytes))
else
  redis.call('HDEL', owners, owner)
end
return 1
