-- Makes a version of a definition the one that counts in a shard, unless a later one does already.
-- KEYS[1]: string, the version that counts
-- KEYS[2]: hash, version -> JSON of the definition
-- ARGV[1]: integer, the version
-- ARGV[2]: string, its JSON
-- Returns the version that counts now.
-- Caller: Store::switch
local current, versions = KEYS[1], KEYS[2]
local version, text = tonumber(ARGV[1]), ARGV[2]

local counts = tonumber(redis.call('GET', current) or '0')
-- Whoever finds the number in `current` finds the text.
redis.call('HSETNX', versions, ARGV[1], text)
if counts >= version then return counts end
redis.call('SET', current, ARGV[1])
return version
