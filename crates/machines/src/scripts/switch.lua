-- Makes a version of a definition active in a shard, unless a later one is active already.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, version -> JSON of the definition
-- ARGV[1]: integer, the version
-- ARGV[2]: string, its JSON
-- Returns the version that is active now.
-- Caller: Versions::switch
local current, versions = KEYS[1], KEYS[2]
local version, text = tonumber(ARGV[1]), ARGV[2]

local active = tonumber(redis.call('GET', current) or '0')
-- The text is written first, so that a reader that finds the number in `current` finds the text.
redis.call('HSETNX', versions, ARGV[1], text)
if active >= version then return active end
redis.call('SET', current, ARGV[1])
return version
