-- Scans the labels' records of a shard. As with SCAN, a record that exists during the whole scan is returned.
-- KEYS[1]: zset, machines with something due; only named, so that a cluster runs the script on the shard's server
-- ARGV[1]: integer, cursor; 0 to begin
-- ARGV[2]: string, the pattern of the records' keys
-- ARGV[3]: integer, approximate number of keys to read
-- Returns {next cursor; 0 at the end, {keys}}
-- Caller: Records::walk
local _, at, pattern, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

return redis.call('SCAN', at, 'MATCH', pattern, 'COUNT', count)
