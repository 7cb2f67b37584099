-- Removes an entry of the due set that a version of its machine does not need, and the progress of its sweep, while that version is
-- active: a later one may need the entry, and may have added it.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- KEYS[3]: string, the active version
-- KEYS[4]: hash, entry of a sweep -> its progress
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2]: string, the entry
-- ARGV[3]: integer, the version; 0 if the machine does not exist
-- Returns 1, or 0 if another version is active.
-- Caller: DueSet::drop_entry
local due, current, sweeps = KEYS[1], KEYS[3], KEYS[4]
local entry, version = ARGV[2], ARGV[3]

local function main()
  if (redis.call('GET', current) or '0') ~= version then return 0 end
  redis.call('ZREM', due, entry)
  redis.call('HDEL', sweeps, entry)
  return 1
end
