-- Counts a fault that somebody saw at an instance and keeps the latest one. Routers see nothing of it.
-- KEYS[1]: hash, instance:<id>
-- ARGV[1]: string, what was seen
-- ARGV[2]: string, the reporter's own id of this fault; empty = none
-- ARGV[3]: integer, unix ms; empty = this server's clock
-- Returns {'noted', faults so far}
--   {'repeated', faults so far}: this fault was the latest already
--   {'unknown'}: no such instance stands in the table
-- Caller: routing/store/table.rs, fault
local instance_key = KEYS[1]
local message, fault_id, now = ARGV[1], ARGV[2], tonumber(ARGV[3])

local state, latest, count = unpack(redis.call('HMGET', instance_key, 'state', 'fault_id', 'faults'))
if state ~= 'active' and state ~= 'draining' then
  return {'unknown'}
end
if fault_id ~= '' and latest == fault_id then
  return {'repeated', tonumber(count or '0')}
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('HSET', instance_key, 'fault', message, 'fault_id', fault_id, 'fault_ms', string.format('%.0f', now))
return {'noted', redis.call('HINCRBY', instance_key, 'faults', 1)}
