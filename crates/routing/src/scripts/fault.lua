-- Counts a fault that a client reported for an instance, and stores the latest one. Routers do not see it; one fault in
-- ten seconds is published to subscribers, so that a broken instance does not displace other events.
-- KEYS[1]: hash, instance:<id>
-- KEYS[2]: string, serial
-- KEYS[3]: stream, the changes of the table
-- ARGV[1]: string, instance id
-- ARGV[2]: string, the reported message
-- ARGV[3]: string, the reporter's own id of this fault; empty = none
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- Returns {'noted', faults so far}
--   {'repeated', faults so far}: this fault was the latest already
--   {'unknown'}: the instance is not in the table
-- Caller: store/table.rs, fault
local instance_key, serial_key, changes = KEYS[1], KEYS[2], KEYS[3]
local id, message, fault_id, now = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local CHANGES_KEPT, TELL_EVERY_MS = 4096, 10000

local state, latest, count, told_ms = unpack(redis.call('HMGET', instance_key, 'state', 'fault_id', 'faults',
  'fault_told_ms'))
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
local faults = redis.call('HINCRBY', instance_key, 'faults', 1)
if now >= tonumber(told_ms or '-inf') + TELL_EVERY_MS then
  local at = string.format('%.0f', now)
  local as = redis.call('HMGET', instance_key, 'address', 'hostnames', 'version_type_id', 'node_id', 'weight')
  -- It is logged with the current serial, which does not change. If the list cannot accept it, the fault is still
  -- counted.
  redis.pcall('XADD', changes, 'MAXLEN', '~', CHANGES_KEPT, (redis.call('GET', serial_key) or '0') .. '-*',
    'kind', 'unhealthy', 'subject', id, 'at_ms', at, 'address', as[1] or '', 'hostnames', as[2] or '',
    'version_type_id', as[3] or '', 'node_id', as[4] or '', 'weight', as[5] or '', 'faults', faults, 'fault', message)
  redis.call('HSET', instance_key, 'fault_told_ms', at)
end
return {'noted', faults}
