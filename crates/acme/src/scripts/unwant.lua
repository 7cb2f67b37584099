-- Removes names that do not have automatic HTTPS anymore. A pacemaker that works on one of them loses its claim.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: zset, all names with score 0
-- KEYS[4]: hash, name → fencing token of its latest claim
-- ARGV[1...]: strings, names
-- Returns the number of removed names
-- Caller: store.rs, unwant
local due, names, index, fences = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local removed = 0
for _, name in ipairs(ARGV) do
  removed = removed + redis.call('HDEL', names, name)
  redis.call('ZREM', due, name)
  redis.call('ZREM', index, name)
  redis.call('HDEL', fences, name)
end
return removed
