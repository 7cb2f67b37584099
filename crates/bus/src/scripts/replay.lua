-- Sets when the next step of a replay comes, or removes it, unless its position has changed: it was replaced, or another
-- pacemaker has moved it.
-- KEYS[1]: hash, the replay
-- KEYS[2]: zset, replays by their next step
-- ARGV[1]: string, the token
-- ARGV[2]: string, the position that the caller knows; empty if there is no replay, or KEYS[1] is of another type
-- ARGV[3]: integer, unix ms of the next step; empty to remove the replay
-- Returns 1, or 0 when the position is another one: nothing was done.
-- Caller: Store::schedule_replay

local position = redis.pcall('HGET', KEYS[1], 'cursor')
if type(position) ~= 'string' then position = '' end
if position ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
end
return 1
