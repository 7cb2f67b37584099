-- Forgets a token by its name.
-- KEYS[1]: hash, digest → record as JSON
-- KEYS[2]: hash, token name → digest
-- ARGV[1]: string, token name
-- Returns the digest, or nil when there was none.
-- Caller: store.rs, delete
local records, names = KEYS[1], KEYS[2]
local name = ARGV[1]

local digest = redis.call('HGET', names, name)
if digest then
  redis.call('HDEL', records, digest)
  redis.call('HDEL', names, name)
end
return digest
