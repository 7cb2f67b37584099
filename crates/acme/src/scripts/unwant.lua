-- Removes names that do not have automatic HTTPS anymore. A name whose host, or the policy of it, has changed since the caller read
-- them stays. A pacemaker that works on a removed name loses its claim: its fencing token is not used again, even if the name
-- is added again.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: zset, all names with score 0
-- KEYS[4]: hash, name → fencing token of its latest claim
-- KEYS[5]: hash, host name → version type last registered for it
-- KEYS[6]: hash, host name → its policy as JSON, with its revision
-- ARGV[1...]: for each name: string, the name; integer, 1 if the caller has read a host of that name, else 0; string, the revision
-- of the policy that it has read, empty = none
-- Returns {removed name, …}
-- Caller: store.rs, unwant
local due, names, index, fences, hosts, policies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

local removed = {}
for at = 1, #ARGV, 3 do
  local name = ARGV[at]
  local host = redis.call('HEXISTS', hosts, name)
  local revision = string.match(redis.call('HGET', policies, name) or '', '^{"revision":(%d+)') or ''
  if host == tonumber(ARGV[at + 1]) and revision == ARGV[at + 2] and redis.call('HEXISTS', names, name) == 1 then
    removed[#removed + 1] = name
  end
end
for n = 1, #removed do
  redis.call('HDEL', names, removed[n])
  redis.call('ZREM', due, removed[n])
  redis.call('ZREM', index, removed[n])
  redis.call('HDEL', fences, removed[n])
end
return removed
