-- Removes a token with all its secrets by its name.
-- KEYS[1]: hash, digest → record as JSON
-- KEYS[2]: hash, token name → digests of its secrets, separated by spaces
-- KEYS[3]: hash, token name → when it was last used
-- ARGV[1]: string, token name
-- Returns the digests, or nil when there is no such token.
-- Caller: store.rs, delete
local records, names, uses = KEYS[1], KEYS[2], KEYS[3]
local name = ARGV[1]

local digests = redis.call('HGET', names, name)
if digests then
  -- A token has at most four secrets.
  for digest in string.gmatch(digests, '%S+') do
    redis.call('HDEL', records, digest)
  end
  redis.call('HDEL', names, name)
  redis.call('HDEL', uses, name)
end
return digests
