-- Ends the seeding of the route table: raises the serial above every serial that routers may have seen, and then writes
-- the lineage, so that routers accept the table.
-- KEYS[1]: string, serial
-- KEYS[2]: string, lineage of the table
-- KEYS[3]: hash, fencing epochs of leases
-- KEYS[4]: stream, the changes of the table
-- KEYS[5]: string, the token of the current seeding
-- ARGV[1]: string, the lineage as the caller read it; empty = none
-- ARGV[2]: string, the new lineage, newest token first
-- ARGV[3]: integer, the highest serial that routers may have seen
-- ARGV[4]: string, name of the lease under which this is done
-- ARGV[5]: integer, fencing epoch of that lease
-- ARGV[6]: string, begun (an installation's first table) | reseeded
-- ARGV[7]: integer, unix ms; empty = this server's clock
-- ARGV[8]: string, the token with which the seeding began; empty = there was none
-- Returns {'done', serial}
--   {'changed', lineage}: the lineage has changed in the meantime, or this is not the table whose seeding began
--   {'fenced', epoch}: another pacemaker took the lease over
-- Caller: store/table.rs, publish_lineage
local serial_key, lineage_key, fencing, changes, seeding_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local expected, lineage, floor = ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease, epoch = ARGV[4], tonumber(ARGV[5])
local kind, now, token = ARGV[6], tonumber(ARGV[7]), ARGV[8]

local stored = tonumber(redis.call('HGET', fencing, lease .. '.epoch') or '0')
if epoch < stored then
  return {'fenced', stored}
end
local serial = tonumber(redis.call('GET', serial_key) or '0') or 0
local present = redis.call('GET', lineage_key) or ''
if present == lineage and serial > floor then
  return {'done', serial}
end
if present ~= expected and present ~= lineage or token ~= '' and redis.call('GET', seeding_key) ~= token then
  return {'changed', present}
end
serial = math.max(serial, floor) + 1
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- This event replaces all unpublished events of the previous table.
redis.call('DEL', changes)
redis.call('XADD', changes, string.format('%.0f-0', serial), 'kind', kind, 'subject', string.match(lineage, '^%S+'),
  'at_ms', string.format('%.0f', now))
redis.call('HSET', fencing, lease .. '.epoch', ARGV[5])
redis.call('SET', serial_key, string.format('%.0f', serial))
redis.call('SET', lineage_key, lineage)
redis.call('DEL', seeding_key)
return {'done', serial}
