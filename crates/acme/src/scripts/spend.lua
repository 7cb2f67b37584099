-- Takes one unit of an hourly budget. The hour begins with its first unit.
-- KEYS[1]: string, units of the present hour
-- ARGV[1]: integer, units per hour
-- Returns 0, or the ms until the next hour when none is left
-- Caller: store.rs, spend
local spent = KEYS[1]
local limit = tonumber(ARGV[1])

if tonumber(redis.call('GET', spent) or '0') >= limit then
  return math.max(redis.call('PTTL', spent), 1)
end
if redis.call('INCR', spent) == 1 then
  redis.call('EXPIRE', spent, 3600)
end
return 0
