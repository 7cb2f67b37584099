-- Removes names that do not have automatic HTTPS anymore, unless a host has changed since the caller read them. A pacemaker that
-- works on one of them loses its claim: its fencing token is not used again, even if the name is added again.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: zset, all names with score 0
-- KEYS[4]: hash, name → fencing token of its latest claim
-- KEYS[5]: string, revision of the latest change of the route table's desired state
-- ARGV[1]: integer, the revision that the caller read before the hosts
-- ARGV[2...]: strings, names
-- Returns the number of removed names, or -1 when the revision is another one: nothing was done
-- Caller: store.rs, unwant
local due, names, index, fences = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

if (redis.call('GET', KEYS[5]) or '0') ~= ARGV[1] then return -1 end
local removed = 0
for at = 2, #ARGV do
  local name = ARGV[at]
  removed = removed + redis.call('HDEL', names, name)
  redis.call('ZREM', due, name)
  redis.call('ZREM', index, name)
  redis.call('HDEL', fences, name)
end
return removed
