-- Puts a job back that got no place among the deliveries. It waits, without being polled, until a delivery to its
-- subscriber ends, or until a pacemaker has a place for another slow delivery.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2-7]: worker, the job it holds, token of the subscriber, generation and number of the lane, batch
-- ARGV[8]: string, the worker of the delivery that the job waits for; empty if it waits for a place
-- ARGV[9]: string, the job of that worker
-- ARGV[10]: integer, ms to wait if that delivery has just ended
-- Returns 1, or 0 when the worker no longer holds the job with this batch (nothing was done).
-- Caller: Store::refuse

local function main(lanes)
  local worker, job, token, before = ARGV[2], ARGV[3], ARGV[4], ARGV[8]
  local kicks, has_ended = lanes.holds(worker, job, token, ARGV[5] .. '.' .. ARGV[6], ARGV[7])
  if has_ended then lanes.abandon(worker, job, token) end
  if not kicks then return 0 end
  lanes.expect_own()
  lanes.expect('list', lanes.behind_key(token), lanes.slow_key)
  local is_held = before ~= '' and redis.call('LINDEX', lanes.pending_key(before), 0) == ARGV[9]

  lanes.let_go(worker)
  if lanes.kicks(token) ~= kicks then
    lanes.instant(job)
  elseif before == '' then
    redis.call('RPUSH', lanes.slow_key, job)
    -- Another pacemaker may have a place.
    lanes.wake_all()
  elseif is_held then
    redis.call('RPUSH', lanes.behind_key(token), job)
  else
    -- The worker is about to hear that the delivery ended.
    lanes.schedule(job, lanes.now(ARGV[1]) + tonumber(ARGV[10]))
  end
  return 1
end
