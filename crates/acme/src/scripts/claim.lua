-- Claims names whose next step is due. A claim ends when the step is stored, or after its time: then another pacemaker
-- continues.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: hash, name → fencing token of its latest claim
-- KEYS[4]: string, the latest fencing token; at least the time, so that none is used twice after a failover that lost writes
-- ARGV[1]: integer, maximum number of names
-- ARGV[2]: integer, duration of a claim in ms
-- ARGV[3]: integer, unix ms; empty = this server's clock
-- Returns {unix ms, name, fencing token, state, 1 if the step was requested whatever the schedule, name, …}
-- Caller: store.rs, claim
local due, names, fences, latest = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit, duration, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local reply = {now}
local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
for at = 1, #found, 2 do
  local name = found[at]
  local state = redis.call('HGET', names, name)
  if state then
    local fence = math.max(tonumber(redis.call('GET', latest) or 0) + 1, now)
    local text = string.format('%.0f', fence)
    redis.call('SET', latest, text)
    redis.call('HSET', fences, name, text)
    redis.call('ZADD', due, now + duration, name)
    reply[#reply + 1] = name
    reply[#reply + 1] = text
    reply[#reply + 1] = state
    reply[#reply + 1] = tonumber(found[at + 1]) == 0 and 1 or 0
  else
    redis.call('ZREM', due, name)
    redis.call('HDEL', fences, name)
  end
end
return reply
