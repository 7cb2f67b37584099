-- Replaces or removes what is stored for a machine under a name, if it is still as the caller read it.
-- KEYS[1]: hash, machine and name -> JSON
-- ARGV[1]: string, machine and name
-- ARGV[2]: string, the JSON that was read
-- ARGV[3]: string, the JSON from now on; empty to remove it
-- Returns 1, or 0 if it has changed.
-- Caller: Shards::replace
local stored, field, before, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', stored, field) ~= before then return 0 end
if after == '' then
  redis.call('HDEL', stored, field)
else
  redis.call('HSET', stored, field, after)
end
return 1
