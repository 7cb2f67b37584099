-- Postpones the next sweep of a queue that cannot be swept, if nothing has changed its time in the meantime. While it stayed
-- the first one, sweepers would not be notified of times of other queues.
-- KEYS[1]: zset, queues by when they have something due
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the queue
-- ARGV[3]: integer, its time as the sweeper knows it, unix ms
-- ARGV[4]: integer, ms from now
-- Returns 1 if the sweep was postponed, otherwise 0.
-- Caller: Store::postpone

local function main(slices)
  if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2])) ~= tonumber(ARGV[3]) then return 0 end
  local later = slices.now(ARGV[1]) + tonumber(ARGV[4])
  redis.call('ZADD', KEYS[1], slices.text(later), ARGV[2])
  return 1
end
