-- Gives a duty back early, so that another pacemaker need not wait for its end. The epoch stays.
-- KEYS[1]: hash, holder, until_ms, epoch
-- ARGV[1]: string, who holds it
-- Returns 1, or 0 when it was not theirs.
-- Caller: duty/store.rs, release
local duty, who = KEYS[1], ARGV[1]

if redis.call('HGET', duty, 'holder') ~= who then
  return 0
end
redis.call('HSET', duty, 'until_ms', '0')
return 1
