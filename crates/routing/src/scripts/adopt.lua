-- Copies a record from the routes primary into the fabric, because the fabric lost it. The primary's revision is kept,
-- so that both agree afterwards.
-- KEYS[1]: hash, instance id → record as JSON
-- KEYS[2]: zset, index of instance ids, all of score 0
-- KEYS[3]: hash, address → id of its owner
-- KEYS[4]: hash, host name → version type last registered for it
-- KEYS[5]: zset, index of host names, all of score 0
-- KEYS[6]: zset, registered and not known to be in the membership sets, by revision
-- KEYS[7]: hash, instance id → the token that registered it
-- KEYS[8]: hash, token → the number of its instances
-- ARGV[1]: string, instance id
-- ARGV[2]: string, the record as the caller read it; empty = there was none
-- ARGV[3]: string, the primary's record as JSON; empty = it was removed there
-- ARGV[4]: string, address in the record read; empty = none
-- ARGV[5]: string, address in the primary's record; empty = none
-- ARGV[6]: integer, revision of the primary's record
-- ARGV[7]: string, version type of the primary's record
-- ARGV[8...]: strings, host names of the primary's record
-- Returns 1, or 0 when the record has changed in the meantime.
-- Caller: store/desired.rs, adopt
local instances, index, addresses, hosts, host_index, unreported =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local registrants, counts = KEYS[7], KEYS[8]
local id, expected, record = ARGV[1], ARGV[2], ARGV[3]
local address_before, address_after, revision, version_type = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

if (redis.call('HGET', instances, id) or '') ~= expected then
  return 0
end
if address_before ~= '' and redis.call('HGET', addresses, address_before) == id then
  redis.call('HDEL', addresses, address_before)
end
if record == '' then
  redis.call('HDEL', instances, id)
  redis.call('ZREM', index, id)
  local registrant = redis.call('HGET', registrants, id)
  if registrant then
    redis.call('HDEL', registrants, id)
    if redis.call('HINCRBY', counts, registrant, -1) <= 0 then
      redis.call('HDEL', counts, registrant)
    end
  end
  return 1
end
redis.call('HSET', instances, id, record)
redis.call('ZADD', index, 0, id)
redis.call('HSET', addresses, address_after, id)
redis.call('ZADD', unreported, revision, id)
-- At most a hundred names.
for at = 8, #ARGV do
  redis.call('HSET', hosts, ARGV[at], version_type)
  redis.call('ZADD', host_index, 0, ARGV[at])
end
return 1
