-- Permits an attempt of an action whose address has limits, or reports that a limit is reached. In each case, the
-- limit's entry in the due set becomes due early enough that waiting labels are checked again, even if the caller
-- crashes.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- KEYS[3]: zset, attempt -> when its permit expires, unix ms
-- KEYS[4]: list, when the last attempts were permitted, unix ms, the newest first
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2]: integer, the time, unix ms
-- ARGV[3]: string, the attempt
-- ARGV[4]: integer, when its permit expires, unix ms
-- ARGV[5]: integer, maximum attempts in progress; 0 for no limit
-- ARGV[6]: integer, maximum attempts that begin in a period; 0 for no limit
-- ARGV[7]: integer, the period, ms
-- ARGV[8]: string, the limit's entry in the due set
-- Returns 1 if the attempt is permitted
--   0 if a limit is reached
--   -1 if the attempt has a permit already, which another caller uses
-- Caller: Permits::take
local due, permits, begun = KEYS[1], KEYS[3], KEYS[4]
local now, attempt, expires = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local concurrent, rate, per = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local entry = ARGV[8]
-- Unused keys expire after this time, which is longer than every period and every permit.
local TTL = 7200000

local function check_again(at) redis.call('ZADD', due, 'LT', at, entry) end

-- The time at which the limits allow another attempt; nil if they allow one now.
local function full_until()
  local at = nil
  if concurrent > 0 and redis.call('ZCARD', permits) >= concurrent then
    at = tonumber(redis.call('ZRANGE', permits, 0, 0, 'WITHSCORES')[2])
  end
  if rate > 0 then
    redis.call('LTRIM', begun, 0, rate - 1)
    local oldest = tonumber(redis.call('LINDEX', begun, rate - 1) or '')
    if oldest and oldest + per > now then at = math.max(at or 0, oldest + per) end
  end
  return at
end

local function main()
  -- The clocks of pacemakers differ slightly. The time never goes back, so that the list stays sorted.
  now = math.max(now, tonumber(redis.call('LINDEX', begun, 0) or '0'))
  redis.call('ZREMRANGEBYSCORE', permits, '-inf', now)
  local known = redis.call('ZSCORE', permits, attempt)
  if known then
    check_again(known)
    return -1
  end
  local full = full_until()
  if full then
    check_again(string.format('%.0f', full))
    return 0
  end
  redis.call('ZADD', permits, expires, attempt)
  redis.call('PEXPIRE', permits, TTL)
  if rate > 0 then
    redis.call('LPUSH', begun, string.format('%.0f', now))
    redis.call('PEXPIRE', begun, TTL)
  end
  check_again(expires)
  return 1
end
