-- Renews an instance's lease. Routers do not see a difference, so the serial stays the same.
-- KEYS[1]: hash, instance:<id>
-- KEYS[2]: zset, instance id by end of lease in unix ms
-- ARGV[1]: string, instance id
-- ARGV[2]: integer, unix ms; empty = this server's clock
-- Returns {'renewed', end of the lease in unix ms, length in ms}
--   {'unleased'}: the instance has no lease
--   {'unknown'}: the instance is not in the table
-- Caller: store/table.rs, heartbeat
local instance_key, leases = KEYS[1], KEYS[2]
local id, now = ARGV[1], tonumber(ARGV[2])

local state, lease_ms = unpack(redis.call('HMGET', instance_key, 'state', 'lease_ms'))
if state ~= 'active' and state ~= 'draining' then
  return {'unknown'}
end
lease_ms = tonumber(lease_ms or '0')
if lease_ms == 0 then
  return {'unleased'}
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('ZADD', leases, now + lease_ms, id)
return {'renewed', now + lease_ms, lease_ms}
