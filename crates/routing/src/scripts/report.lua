-- Records that an instance is in the membership sets of the statistics, unless it was changed since.
-- KEYS[1]: zset, registered and not known to be in the membership sets, by revision
-- ARGV[1]: string, instance id
-- ARGV[2]: integer, revision that was reported
-- Returns 1 when the entry was removed, else 0.
-- Caller: store/desired.rs, reported
local unreported, id, revision = KEYS[1], ARGV[1], tonumber(ARGV[2])

local outstanding = redis.call('ZSCORE', unreported, id)
if outstanding and tonumber(outstanding) > revision then
  return 0
end
redis.call('ZREM', unreported, id)
return 1
