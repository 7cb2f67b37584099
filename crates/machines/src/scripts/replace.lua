-- Replaces a task, if it is still as the caller read it.
-- KEYS[1]: hash, machine and task -> the task as JSON
-- ARGV[1]: string, machine and task
-- ARGV[2]: string, the JSON that was read
-- ARGV[3]: string, the JSON from now on
-- Returns 1, or 0 if the task has changed.
-- Caller: Tasks::replace
local tasks, field, before, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', tasks, field) ~= before then return 0 end
redis.call('HSET', tasks, field, after)
return 1
