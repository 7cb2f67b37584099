-- Takes a host's policy over into the fabric as the routes master has it, because the fabric lost it. The master's
-- revision is kept, so that both agree afterwards.
-- KEYS[1]: hash, host name → its policy with its revision as JSON
-- KEYS[2]: hash, host name → version type last registered for it
-- KEYS[3]: zset, index of host names, all of score 0
-- ARGV[1]: string, host name
-- ARGV[2]: string, what the fabric has, as the caller read it; empty = nothing
-- ARGV[3]: string, what the master has; empty = it was taken away there
-- Returns 1, or 0 when the fabric has another by now.
-- Caller: store/policies.rs, adopt_policy
local policies, hosts, host_index = KEYS[1], KEYS[2], KEYS[3]
local hostname, expected, text = ARGV[1], ARGV[2], ARGV[3]

if (redis.call('HGET', policies, hostname) or '') ~= expected then
  return 0
end
if text == '' then
  redis.call('HDEL', policies, hostname)
  if redis.call('HEXISTS', hosts, hostname) == 0 then
    redis.call('ZREM', host_index, hostname)
  end
else
  redis.call('HSET', policies, hostname, text)
  redis.call('ZADD', host_index, 0, hostname)
end
return 1
