-- Stores up to which event inputs have applied the log of a shard, for machines that are as the caller has read them. Of a
-- machine that was applied or deleted since, or whose events another pacemaker has applied, nothing changes.
-- KEYS[1]: hash, machine -> up to which event of this shard its inputs have applied the log, and its versions since then
-- ARGV[1...]: for each machine, at most 100: its name, what is stored of it, and what is stored then; empty to remove it
-- Returns how many were stored.
-- Caller: InputPositions::advance
local inputs = KEYS[1]

local stored = 0
for at = 1, #ARGV, 3 do
  local machine, expected, after = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if redis.call('HGET', inputs, machine) == expected then
    if after == '' then
      redis.call('HDEL', inputs, machine)
    else
      redis.call('HSET', inputs, machine, after)
    end
    stored = stored + 1
  end
end
return stored
