-- Stores up to which position the changes of the table were published as events. A caller that read the position before
-- another one moved it gets 0, and the position never moves back.
-- KEYS[1]: hash, how far changes were published: epoch, serial, entry
-- KEYS[2]: hash, the state last given to the routes primary: epoch, serial
-- ARGV[1]: string, the place as the caller read it, "epoch serial entry"; empty = none
-- ARGV[2]: string, newest epoch of the table
-- ARGV[3]: integer, serial up to which everything is published
-- ARGV[4]: string, last published entry of the list of changes
-- Returns 1, or 0 when the position has changed in the meantime.
-- Caller: store/changes.rs, announced_up_to
local announced, route_table = KEYS[1], KEYS[2]
local expected, epoch, serial, entry = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local known = redis.call('HMGET', announced, 'epoch', 'serial', 'entry')
local present = known[1] and table.concat({known[1], known[2] or '', known[3] or ''}, ' ') or ''
if present ~= expected then
  return 0
end
redis.call('HSET', announced, 'epoch', epoch, 'serial', serial, 'entry', entry)
-- A published change has happened, so a table that does not contain it has lost changes.
local lineage, reached = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if lineage and string.match(lineage, '^%S+') == epoch and tonumber(serial) > tonumber(reached or '0') then
  redis.call('HSET', route_table, 'serial', serial)
end
return 1
