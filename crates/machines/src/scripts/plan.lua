-- Stores a plan. A client has a limited number of plans, of all machines together: its oldest one is removed for a new one.
-- KEYS[1]: string, the plan
-- KEYS[2]: zset, the keys of the client's plans by when they were made, unix microseconds
-- ARGV[1]: string, its JSON
-- ARGV[2]: integer, seconds until it expires
-- ARGV[3]: integer, the maximum number of plans
-- Returns the number of plans that were removed.
-- Caller: Versions::keep_plan
local plan, plans = KEYS[1], KEYS[2]
local text, seconds, max = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- Plans that are beyond the maximum, one call; a lower maximum after an upgrade takes several.
local MAX_REMOVED = 100

local now = redis.call('TIME')
local over = redis.call('ZCARD', plans) + 1 - max
local old = over > 0 and redis.call('ZRANGE', plans, 0, math.min(over, MAX_REMOVED) - 1) or {}
redis.call('SET', plan, text, 'EX', seconds)
redis.call('ZADD', plans, now[1] * 1000000 + now[2], plan)
redis.call('EXPIRE', plans, seconds)
for i = 1, #old do
  redis.call('DEL', old[i])
  redis.call('ZREM', plans, old[i])
end
return #old
