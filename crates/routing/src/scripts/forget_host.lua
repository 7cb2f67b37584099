-- Removes a host name without desired instances, its policy and its promotion.
-- KEYS[1]: hash, host name → version type last registered for it
-- KEYS[2]: zset, index of host names, all of score 0
-- KEYS[3]: string, revision of the latest change
-- KEYS[4]: zset, changed and not known to be in the table, by revision
-- KEYS[5]: hash, the state last given to the routes primary: epoch, serial
-- KEYS[6]: hash, host name → its policy with its revision as JSON
-- KEYS[7]: hash, host name → its promotion with its revision as JSON
-- ARGV[1]: string, host name
-- ARGV[2]: integer, the highest revision that the caller has ever seen
-- Returns {'accepted', revision, serial of the table, lineage of the table}
--   {'regressed', revision}: this server has lost changes; reconcile first
--   {'uninitialized'}: this server is empty; reconcile first
-- Caller: store/desired.rs, forget_host
local hosts, host_index, revisions, unprojected, route_table, policies, promotions =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local hostname, floor = ARGV[1], tonumber(ARGV[2])

local lineage, serial = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if not lineage then
  return {'uninitialized'}
end
local latest = tonumber(redis.call('GET', revisions) or '0')
if latest < floor then
  return {'regressed', latest}
end
local revision = redis.call('INCR', revisions)
redis.call('HDEL', hosts, hostname)
redis.call('HDEL', policies, hostname)
redis.call('HDEL', promotions, hostname)
redis.call('ZREM', host_index, hostname)
-- No instance id begins with @. Changes of its policy and its promotion are removed as well.
redis.call('ZREM', unprojected, '%' .. hostname, '^' .. hostname)
redis.call('ZADD', unprojected, string.format('%.0f', revision), '@' .. hostname)
return {'accepted', revision, tonumber(serial or '0'), lineage}
