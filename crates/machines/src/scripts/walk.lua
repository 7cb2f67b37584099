-- Walks over the labels' records of a shard, as SCAN walks over keys: each is seen that was there all the time.
-- KEYS[1]: zset, what is due; only named, so that a cluster asks the shard's own server
-- ARGV[1]: integer, where the walk is; 0 at its beginning
-- ARGV[2]: string, the pattern of the records' keys
-- ARGV[3]: integer, about how many keys to look at
-- Returns {where the walk is then; 0 at its end, {keys}}
-- Caller: Store::walk
local _, at, pattern, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

return redis.call('SCAN', at, 'MATCH', pattern, 'COUNT', count)
