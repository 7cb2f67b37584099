-- Removes all versions of a machine that was deleted, unless another machine of its name has one.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, machine -> a change of definition that is in progress
-- KEYS[3]: hash, version -> JSON of the definition without its text
-- KEYS[4]: hash, machine -> when the bytes of its labels were counted, and how far
-- KEYS[5]: hash, owner -> the bytes that it uses
-- KEYS[6]: hash, client -> the bytes of its definitions of the machine
-- KEYS[7]: hash, version -> text of the definition
-- ARGV[1]: string, machine
-- ARGV[2]: string, the owner that is the machine
-- Returns 1, or 0 if nothing was removed.
-- Caller: Versions::remove
local current, applying, versions, recounts, owners, by_client = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local sources = KEYS[7]
local machine, owner = ARGV[1], ARGV[2]

if redis.call('EXISTS', current) == 1 or redis.call('HEXISTS', applying, machine) == 1 then return 0 end
local stored = redis.call('HGETALL', by_client)
redis.call('HDEL', recounts, machine)
redis.call('HDEL', owners, owner)
for i = 1, #stored, 2 do
  local client = 'client:' .. stored[i]
  if redis.call('HINCRBY', owners, client, '-' .. stored[i + 1]) <= 0 then redis.call('HDEL', owners, client) end
end
redis.call('DEL', versions, sources, by_client)
return 1
