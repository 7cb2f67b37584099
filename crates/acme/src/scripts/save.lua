-- Stores the state of a claimed name, and when its next step is due.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: hash, name → fencing token of its latest claim
-- ARGV[1]: string, name
-- ARGV[2]: integer, fencing token of the claim
-- ARGV[3]: string, the state; empty = unchanged
-- ARGV[4]: integer, ms from now until the next step
-- ARGV[5]: integer, unix ms; empty = this server's clock
-- Returns 1, or 0 when the claim has ended and another pacemaker has the name, or the name is not wanted anymore
-- Caller: store.rs, save
local due, names, fences = KEYS[1], KEYS[2], KEYS[3]
local name, fence, state, pause, now = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

if redis.call('HGET', fences, name) ~= fence then
  return 0
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if state ~= '' then
  redis.call('HSET', names, name, state)
end
redis.call('ZADD', due, now + pause, name)
return 1
