-- Takes a certificate over into the fabric as the routes master has it, because the fabric lost it. The master's
-- revision is kept, so that both agree afterwards.
-- KEYS[1]: hash, server name → its certificate with its revision and end as JSON
-- KEYS[2]: zset, index of server names, all of score 0
-- KEYS[3]: zset, server name by the end of its certificate in unix seconds
-- ARGV[1]: string, server name
-- ARGV[2]: string, revision that the fabric has, as the caller read it; empty = none
-- ARGV[3]: string, what the master has; empty = it was taken away there
-- ARGV[4]: integer, when that ends, unix seconds
-- Returns 1, or 0 when the fabric has another by now.
-- Caller: store/certificates.rs, adopt_certificate
local certificates, index, ends = KEYS[1], KEYS[2], KEYS[3]
local name, expected, text, ends_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local stored = redis.call('HGET', certificates, name) or ''
if (string.match(stored, '^{"revision":(%d+),') or '') ~= expected then
  return 0
end
if text == '' then
  redis.call('HDEL', certificates, name)
  redis.call('ZREM', index, name)
  redis.call('ZREM', ends, name)
else
  redis.call('HSET', certificates, name, text)
  redis.call('ZADD', index, 0, name)
  redis.call('ZADD', ends, ends_at, name)
end
return 1
