-- Reads in one call what the reconciler compares with the table: the state of the fabric, and the number of pending
-- changes.
-- KEYS[1]: hash, the state last given to the routes primary: epoch, serial, seeding
-- KEYS[2]: integer, revision of the desired state
-- KEYS[3]: zset, changed and not known to be in the table, by revision
-- KEYS[4]: zset, changed and not known to be in the membership sets, by revision
-- Returns {lineage or '', serial, token of a seeding or '', revision, number not projected, number not reported}
-- Caller: store/desired.rs, pulse
local route_table, revision, unprojected, unreported = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local fields = redis.call('HMGET', route_table, 'epoch', 'serial', 'seeding')
return {
  fields[1] or '', fields[2] or '0', fields[3] or '', redis.call('GET', revision) or '0',
  redis.call('ZCARD', unprojected), redis.call('ZCARD', unreported),
}
