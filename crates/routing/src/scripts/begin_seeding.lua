-- Begins the seeding of the route table: removes its lineage, so that no router accepts it before the end, and marks
-- the table, so that the end is written to this very table. If the lineage stayed, a table that lost a few changes
-- would have an epoch that routers know and, while instances are written, soon a serial that is high enough for them.
-- Without the mark, if the primary is replaced by an empty one in between, that would get the lineage with only half of
-- the hosts.
-- KEYS[1]: string, lineage of the table
-- KEYS[2]: string, the token of the current seeding
-- KEYS[3]: hash, fencing epochs of leases
-- ARGV[1]: string, the lineage as the caller read it; empty = none
-- ARGV[2]: string, the token
-- ARGV[3]: string, name of the lease under which this is done
-- ARGV[4]: integer, fencing epoch of that lease
-- Returns {'done', 0}
--   {'changed', lineage}: the lineage has changed in the meantime
--   {'fenced', epoch}: another pacemaker took the lease over
-- Caller: store/table.rs, begin_seeding
local lineage_key, seeding_key, fencing = KEYS[1], KEYS[2], KEYS[3]
local expected, token, lease, epoch = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local stored = tonumber(redis.call('HGET', fencing, lease .. '.epoch') or '0')
if epoch < stored then
  return {'fenced', stored}
end
local present = redis.call('GET', lineage_key) or ''
if present ~= expected then
  return {'changed', present}
end
redis.call('HSET', fencing, lease .. '.epoch', ARGV[4])
redis.call('SET', seeding_key, token)
redis.call('DEL', lineage_key)
return {'done', 0}
