-- Changes the policy that is wanted of a host, or takes it away.
-- KEYS[1]: hash, host name → its policy with its revision as JSON
-- KEYS[2]: hash, host name → version type last registered for it
-- KEYS[3]: zset, index of host names, all of score 0
-- KEYS[4]: string, revision of the latest change
-- KEYS[5]: zset, changed and not known to stand in the table, by revision
-- KEYS[6]: hash, what the routes master was last given: epoch, serial
-- ARGV[1]: string, host name
-- ARGV[2]: string, the policy as JSON; empty = take it away
-- ARGV[3]: integer, the highest revision that the caller has ever seen
-- ARGV[4]: string, revision of the policy that the caller read; empty = whatever it is, 0 = none is wanted, and what
--   may stand in the table all the same is to be taken away
-- Returns {'accepted', revision, serial of the table, lineage of the table}
--   {'same', revision that is not known to stand or 0, serial, lineage}: it is wanted like that already
--   {'changed'}: the policy is another by now; read again
--   {'regressed', revision}: this server has lost changes; reconcile first
--   {'uninitialised'}: this server is empty; reconcile first
-- Caller: store/policies.rs, desire_policy
local policies, hosts, host_index = KEYS[1], KEYS[2], KEYS[3]
local revisions, unprojected, route_table = KEYS[4], KEYS[5], KEYS[6]
local hostname, policy, floor, expected = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local lineage, serial = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if not lineage then
  return {'uninitialised'}
end
serial = tonumber(serial or '0')
local latest = tonumber(redis.call('GET', revisions) or '0')
if latest < floor then
  return {'regressed', latest}
end
local stored = redis.call('HGET', policies, hostname) or ''
local stored_revision = string.match(stored, '^{"revision":(%d+),') or ''
if expected ~= '' and (stored_revision == '' and '0' or stored_revision) ~= expected then
  return {'changed'}
end
-- % begins no instance id.
local member = '%' .. hostname
local tail = policy ~= '' and ',"policy":' .. policy .. '}' or ''
if expected ~= '0' and string.sub(stored, #'{"revision":' + #stored_revision + 1) == tail then
  return {'same', tonumber(redis.call('ZSCORE', unprojected, member) or '0'), serial, lineage}
end
local revision = string.format('%.0f', redis.call('INCR', revisions))
if policy == '' then
  redis.call('HDEL', policies, hostname)
  -- A name that no instance was ever registered for was known by its policy alone.
  if redis.call('HEXISTS', hosts, hostname) == 0 then
    redis.call('ZREM', host_index, hostname)
  end
else
  redis.call('HSET', policies, hostname, '{"revision":' .. revision .. tail)
  redis.call('ZADD', host_index, 0, hostname)
end
redis.call('ZADD', unprojected, revision, member)
return {'accepted', tonumber(revision), serial, lineage}
