-- Makes no version of a machine active in a shard, and ends its inputs. No version up to the given one becomes active again there.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, machine -> up to which event of this shard its inputs have applied the log, and its versions since then
-- KEYS[3]: hash, machine that was deleted -> the number of its last version
-- ARGV[1]: string, machine
-- ARGV[2]: integer, its last version; a later one is another machine's of this name, and stays
-- Returns 1, or 0 if a later version is active.
-- Caller: Versions::retire
local current, inputs, retired = KEYS[1], KEYS[2], KEYS[3]
local machine, last = ARGV[1], tonumber(ARGV[2])

if last > tonumber(redis.call('HGET', retired, machine) or '0') then
  redis.call('HSET', retired, machine, ARGV[2])
end
if tonumber(redis.call('GET', current) or '0') > last then return 0 end
redis.call('HDEL', inputs, machine)
redis.call('DEL', current)
return 1
