-- Replaces the secrets of a token, if they are still those that the caller has read.
-- KEYS[1]: hash, digest → record as JSON
-- KEYS[2]: hash, token name → digests of its secrets, newest first, separated by spaces
-- ARGV[1]: string, token name
-- ARGV[2]: string, the digests that the caller has read
-- ARGV[3]: string, the digests from now on
-- ARGV[4...]: for each secret its digest and its record as JSON, or nothing to remove it
-- Returns 1, or 0 when the secrets are others.
-- Caller: store.rs, rotate
local records, names = KEYS[1], KEYS[2]
local name, before, after = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', names, name) ~= before then
  return 0
end
redis.call('HSET', names, name, after)
for at = 4, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', records, ARGV[at])
  else
    redis.call('HSET', records, ARGV[at], ARGV[at + 1])
  end
end
return 1
