-- Moves a task to the hash of its machine from the one that all machines shared in earlier versions. If the task is in
-- both, the one of its machine counts: it was moved before.
-- KEYS[1]: hash, task -> JSON
-- KEYS[2]: zset, machine, task and client of each task that runs, at score 0
-- KEYS[3]: hash, machine and task -> JSON, of all machines
-- ARGV[1]: string, machine
-- ARGV[2]: string, task
-- ARGV[3]: string, the JSON that was read
-- ARGV[4]: string, the JSON from now on
-- ARGV[5]: string, machine, task and client; empty if the task does not run
-- ARGV[6]: integer, for how long the tasks of a machine are kept of which none runs, ms
-- Returns 1 if it was moved
--   0 if another pacemaker has moved or changed it
-- Caller: Tasks::adopt_one
local tasks, running, old = KEYS[1], KEYS[2], KEYS[3]
local machine, id, before, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local entry, kept = ARGV[5], ARGV[6]

if redis.call('HGET', old, machine .. ' ' .. id) ~= before then return 0 end
-- This fails before the first write if the key has another type.
redis.call('ZCARD', running)

if redis.call('HSETNX', tasks, id, after) == 1 and entry ~= '' then redis.call('ZADD', running, 0, entry) end
redis.call('HDEL', old, machine .. ' ' .. id)
if redis.call('ZLEXCOUNT', running, '[' .. machine .. ' ', '(' .. machine .. '!') == 0 then
  redis.call('PEXPIRE', tasks, kept)
else
  redis.call('PERSIST', tasks)
end
return 1
