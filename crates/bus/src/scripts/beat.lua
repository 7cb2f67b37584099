-- Records the heartbeats of busy workers. A worker that holds no job, or was scrubbed, is skipped.
-- KEYS[1]: hash, worker -> last heartbeat, unix ms
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2...]: strings, workers
-- Returns how many were recorded.
-- Caller: Store::beat

local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
-- Redis accepts this write at its memory limit, and then those after it: workers must not seem dead when Redis is full.
redis.call('HDEL', KEYS[1], '')
local noted = 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('HSET', KEYS[1], ARGV[i], now)
    noted = noted + 1
  end
end
return noted
