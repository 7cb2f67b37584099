-- Records in the fabric the lineage that the routes primary has or is about to get. The call can be repeated.
-- KEYS[1]: hash, the state last given to the routes primary: epoch, serial, and a token that is not published yet
-- KEYS[2]: string, revision of the latest change
-- ARGV[1]: string, the lineage as the caller read it; empty = none
-- ARGV[2]: string, the new lineage
-- ARGV[3]: integer, serial of the table
-- ARGV[4]: string, token that the routes primary does not have yet; empty = it has the whole lineage
-- ARGV[5]: integer, the minimum revision from now on
-- Returns 1, or 0 when the lineage has changed in the meantime.
-- Caller: store/desired.rs, set_lineage
local route_table, revisions = KEYS[1], KEYS[2]
local expected, lineage, serial, seeding, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local present = redis.call('HGET', route_table, 'epoch') or ''
if present ~= expected and present ~= lineage then
  return 0
end
if tonumber(redis.call('GET', revisions) or '0') < floor then
  redis.call('SET', revisions, ARGV[5])
end
redis.call('HSET', route_table, 'epoch', lineage, 'seeding', seeding)
if tonumber(redis.call('HGET', route_table, 'serial') or '0') < tonumber(serial) then
  redis.call('HSET', route_table, 'serial', serial)
end
return 1
