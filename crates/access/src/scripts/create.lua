-- Stores a new token under its digest, unless its name is taken.
-- KEYS[1]: hash, digest → record as JSON
-- KEYS[2]: hash, token name → digests of its secrets
-- KEYS[3]: hash, token name → when it was last used
-- ARGV[1]: string, token name
-- ARGV[2]: string, SHA-256 of the token in hexadecimal
-- ARGV[3]: string, record as JSON
-- Returns 1, or 0 when the name is taken.
-- Caller: store.rs, create
local records, names, uses = KEYS[1], KEYS[2], KEYS[3]
local name, digest, record = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HSETNX', names, name, digest) == 0 then
  return 0
end
redis.call('HSET', records, digest, record)
-- A deleted token of this name may have been used after its deletion, which stored its last use again.
redis.call('HDEL', uses, name)
return 1
