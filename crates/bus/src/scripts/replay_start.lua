-- Starts a replay for a subscriber, in place of one that is under way.
-- KEYS[1]: hash, the registry of this shard
-- KEYS[2]: hash, the replay
-- KEYS[3]: zset, replays by their next step
-- ARGV[1]: string, the registry's stamp, in which the subscription exists
-- ARGV[2]: string, the token
-- ARGV[3]: integer, unix ms of the first step
-- ARGV[4]: string, the position
-- ARGV[5-7]: integers: unix ms from which and until which events are delivered again, events per second
-- Returns 1; 0 when the registry has another stamp: nothing was done.
-- Caller: Store::start_replay

if redis.call('HGET', KEYS[1], 'stamp') ~= ARGV[1] then return 0 end
-- A key of another type fails here, before the first write.
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HSET', KEYS[2], 'cursor', ARGV[4], 'from', ARGV[5], 'to', ARGV[6], 'rate', ARGV[7])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[2])
return 1
