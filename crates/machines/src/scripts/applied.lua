-- Ends a change of definition, if it is still in progress.
-- KEYS[1]: hash, machine -> a change of definition that is in progress
-- ARGV[1]: string, machine
-- ARGV[2]: string, the record of the change that is finished
-- Returns 1, or 0 when it was ended before.
-- Caller: Versions::end_apply
local applying, machine, note = KEYS[1], ARGV[1], ARGV[2]

if redis.call('HGET', applying, machine) ~= note then return 0 end
return redis.call('HDEL', applying, machine)
