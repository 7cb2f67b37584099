-- Postpones an entry of the due set that is as the caller has read it. A sweep that is postponed for the first time begins: its
-- time is stored, because the entry does not have it any more.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- KEYS[3]: hash, sweep -> its time, unix ms, and the last label that it evaluated
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2]: string, the entry
-- ARGV[3]: integer, when it was due, unix ms
-- ARGV[4]: integer, when it is due then, unix ms
-- ARGV[5]: integer, 1 if the entry is a sweep, else 0
-- Returns 1, or 0 if the entry was moved or removed.
-- Caller: DueSet::postpone
local due, sweeps = KEYS[1], KEYS[3]
local entry, before, after, is_sweep = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

local function main()
  local score = redis.call('ZSCORE', due, entry)
  if not score or tonumber(score) ~= tonumber(before) then return 0 end
  if is_sweep then redis.call('HSETNX', sweeps, entry, before .. ' ') end
  redis.call('ZADD', due, after, entry)
  return 1
end
