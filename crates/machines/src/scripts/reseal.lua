-- Replaces a secret by the same secret encrypted with another key, unless it was changed in the meantime.
-- KEYS[1]: hash, machine and name -> JSON of the secret
-- ARGV[1]: string, machine and name
-- ARGV[2]: string, the JSON that is replaced
-- ARGV[3]: string, the new JSON
-- Returns 1, or 0 if the secret was changed.
-- Caller: StoredSecrets::replace
local secrets, field, before, after = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', secrets, field) ~= before then return 0 end
redis.call('HSET', secrets, field, after)
return 1
