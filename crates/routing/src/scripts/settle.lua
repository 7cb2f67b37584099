-- Records that a change is in the table, unless a later one is pending, and the serial that the table has reached.
-- KEYS[1]: zset, changed and not known to be in the table, by revision
-- KEYS[2]: hash, the state last given to the routes primary: epoch, serial
-- ARGV[1]: string, instance id, or @ and a host name
-- ARGV[2]: integer, revision in the table
-- ARGV[3]: integer, serial of the table after it
-- ARGV[4]: string, newest epoch of the table after it
-- Returns 1 when no change is pending for the member any longer, else 0.
-- Caller: store/desired.rs, settle
local unprojected, route_table = KEYS[1], KEYS[2]
local member, revision, serial, epoch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

-- A serial is valid only within its epoch, because a re-seeded table has new serials.
local lineage, known = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if lineage and string.match(lineage, '^%S+') == epoch and serial > tonumber(known or '0') then
  redis.call('HSET', route_table, 'serial', ARGV[3])
end
local outstanding = redis.call('ZSCORE', unprojected, member)
if outstanding and tonumber(outstanding) > revision then
  return 0
end
redis.call('ZREM', unprojected, member)
return 1
