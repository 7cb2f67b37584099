-- Creates an empty registry, unless there is one.
-- KEYS[1]: hash, the registry of this shard
-- ARGV[1]: string, identity of the fabric
-- ARGV[2]: string, stamp
-- ARGV[3]: string, snapshot
-- ARGV[4]: integer, number of shards
-- Returns {identity, stamp, snapshot, shards} as they are afterwards.
-- Caller: Store::initialize

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'fabric', ARGV[1], 'stamp', ARGV[2], 'snapshot', ARGV[3], 'shards', ARGV[4])
end
return redis.call('HMGET', KEYS[1], 'fabric', 'stamp', 'snapshot', 'shards')
