-- Stores a task of a machine and whether it runs, in one step, unless the task has changed since the caller read it.
-- KEYS[1]: hash, task -> JSON
-- KEYS[2]: zset, machine, task and client of each task that runs, at score 0
-- ARGV[1]: string, machine
-- ARGV[2]: string, task
-- ARGV[3]: string, the JSON that was read; empty if there was none
-- ARGV[4]: string, the JSON from now on; empty to leave what is stored
-- ARGV[5]: string, machine, task and client; empty if the task does not run
-- ARGV[6]: integer, maximum tasks of the machine that run, for a new one; 0 for no limit
-- ARGV[7]: integer, for how long the tasks of a machine are kept of which none runs, ms
-- Returns 1 if it was stored
--   0 if the task has changed
--   -1 if the limit is reached
-- Caller: Tasks::write
local tasks, running = KEYS[1], KEYS[2]
local machine, id, before, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local entry, limit, kept = ARGV[5], tonumber(ARGV[6]), ARGV[7]

-- The range of entries that begin with these words and a space, which `!` follows in the order of bytes.
local function from(words) return '[' .. words .. ' ' end
local function to(words) return '(' .. words .. '!' end
local function count() return redis.call('ZLEXCOUNT', running, from(machine), to(machine)) end

if (redis.call('HGET', tasks, id) or '') ~= before then return 0 end
-- This fails before the first write if the key has another type.
local others = count()
if limit > 0 and others >= limit then return -1 end

if after ~= '' then redis.call('HSET', tasks, id, after) end
if entry ~= '' then
  redis.call('ZADD', running, 0, entry)
else
  local words = machine .. ' ' .. id
  redis.call('ZREMRANGEBYLEX', running, from(words), to(words))
end
if count() == 0 then
  redis.call('PEXPIRE', tasks, kept)
else
  redis.call('PERSIST', tasks)
end
return 1
