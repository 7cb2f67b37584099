-- Sets when an entry of a due set is due, or removes it.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2]: string, the entry; an empty one does not exist
-- ARGV[3]: integer, unix ms; empty to remove the entry
-- ARGV[4]: integer, 1 to leave an entry that exists as it is, else 0
-- Returns 1 if the entry was added, else 0
-- Caller: DueSet::set, DueSet::ensure, DueSet::settle
local due, entry, at, only_new = KEYS[1], ARGV[2], ARGV[3], ARGV[4] == '1'

local function main()
  if at == '' then
    redis.call('ZREM', due, entry)
    return 0
  end
  if only_new then return redis.call('ZADD', due, 'NX', at, entry) end
  return redis.call('ZADD', due, at, entry)
end
