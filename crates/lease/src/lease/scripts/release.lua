-- Releases a lease before it expires, so that another pacemaker does not have to wait. The epoch stays.
-- KEYS[1]: hash, holder, until_ms, epoch
-- ARGV[1]: string, the holder
-- Returns 1, or 0 when another process holds it.
-- Caller: lease/store.rs, release
local lease, who = KEYS[1], ARGV[1]

if redis.call('HGET', lease, 'holder') ~= who then
  return 0
end
redis.call('HSET', lease, 'until_ms', '0')
return 1
