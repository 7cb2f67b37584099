-- Moves entries of a machine to its due set from the one that all machines of a shard shared in earlier versions. If an entry is
-- in both, the earlier time counts: what is worked on too early is moved to its time then.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- KEYS[3]: zset, entry of any machine -> when it is due, unix ms
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2...]: strings, the entries, at most 500
-- Returns how many were moved
-- Caller: DueSet::adopt
local due, old = KEYS[1], KEYS[3]

local function main()
  local moved = 0
  for n = 2, #ARGV do
    local at = redis.call('ZSCORE', old, ARGV[n])
    if at then
      redis.call('ZADD', due, 'LT', at, ARGV[n])
      redis.call('ZREM', old, ARGV[n])
      moved = moved + 1
    end
  end
  return moved
end
