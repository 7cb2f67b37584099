-- Counts the bytes of the next labels of a machine again, in the order of their names. Changes of labels that were counted
-- are added by labels.lua, so the result is exact. After the last label it replaces the count of the machine.
-- KEYS[1]: hash, machine -> bytes that its recount has found, a space, and the last label that was counted; or a mark
-- KEYS[2]: hash, owner -> bytes that are stored for it
-- KEYS[3...]: zset, the labels in each state of the machine, by name; at most 250
-- ARGV[1]: string, the machine
-- ARGV[2]: string, the prefix of the keys of its labels' records
-- ARGV[3]: integer, the maximum number of labels that are counted; four of each state may be counted in any case
-- Returns 1 after the last label, or if no recount of the machine is under way; else 0
-- Caller: LabelBytes::count_next
local recounts, owners, FIRST_STATE = KEYS[1], KEYS[2], 3
local machine, prefix, max = ARGV[1], ARGV[2], tonumber(ARGV[3])
local owner = 'machine:' .. machine
-- As in labels.lua: bytes that the indexes need for a label, about.
local INDEX_BYTES = 256
-- With fewer, a page of many states would contain hardly any label: it ends at the first name that is the last one of a state.
local MIN_PER_STATE = 4

-- The names of the next page, those after `last` in any of the states, and the last name of the page ('' if no names are left
-- after it). A page ends at a name after which no state has more than `per` names in it, so no name is left out, and nothing
-- has to be sorted: Redis compares the names.
local function next_names(last)
  local after, live = '(' .. last, {}
  for i = FIRST_STATE, #KEYS do
    if redis.call('ZRANGE', KEYS[i], after, '+', 'BYLEX', 'LIMIT', 0, 1)[1] then live[#live + 1] = KEYS[i] end
  end
  local per, up_to = math.max(MIN_PER_STATE, math.floor(max / math.max(1, #live))), '+'
  for i = 1, #live do
    local name = redis.call('ZRANGE', live[i], after, up_to, 'BYLEX', 'LIMIT', per - 1, 1)[1]
    if name then up_to = '[' .. name end
  end
  -- A damaged index may have a label that is in another one, too.
  local names, seen = {}, {}
  for i = 1, #live do
    local found = redis.call('ZRANGE', live[i], after, up_to, 'BYLEX')
    for n = 1, #found do
      if not seen[found[n]] then names[#names + 1], seen[found[n]] = found[n], true end
    end
  end
  return names, string.sub(up_to, 2)
end

local bytes, last = string.match(redis.call('HGET', recounts, machine) or '', '^(%-?%d+) (.*)$')
if not bytes then return 1 end
bytes = tonumber(bytes)
-- Fails before the first write if the key has another type.
redis.call('HEXISTS', owners, owner)
local names, page_end = next_names(last)
for n = 1, #names do
  local length = redis.call('STRLEN', prefix .. names[n] .. ':data')
  if length > 0 then bytes = bytes + length + INDEX_BYTES end
end
if page_end ~= '' then
  redis.call('HSET', recounts, machine, string.format('%.0f %s', bytes, page_end))
  return 0
end
redis.call('HDEL', recounts, machine)
if bytes > 0 then
  redis.call('HSET', owners, owner, string.format('%.0f', bytes))
else
  redis.call('HDEL', owners, owner)
end
return 1
