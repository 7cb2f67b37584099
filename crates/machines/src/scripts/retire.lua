-- Makes no version of a machine active in a shard, and ends its inputs.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, machine -> up to which event of this shard its inputs have applied the log, and its versions since then
-- ARGV[1]: string, machine
-- Returns 1, or 0 if no version was active.
-- Caller: Versions::retire
local current, inputs, machine = KEYS[1], KEYS[2], ARGV[1]

redis.call('HDEL', inputs, machine)
return redis.call('DEL', current)
