-- Removes a batch that was delivered, and continues with its lane.
-- KEYS[1]: zset, index of batches
-- KEYS[2]: hash, events by token
-- KEYS[3]: hash, batches by token
-- KEYS[4]: set, all jobs
-- KEYS[5]: zset, scheduled jobs
-- KEYS[6]: list, instant jobs
-- KEYS[7]: set, workers that hold a job
-- KEYS[8]: hash, heartbeats of workers
-- KEYS[9]: hash, counters
-- KEYS[10]: hash, counters of the subscription
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, worker
-- ARGV[3]: string, the job it holds
-- ARGV[4]: string, token of the subscriber
-- ARGV[5]: integer, generation of the lane
-- ARGV[6]: integer, number of the lane
-- ARGV[7]: string, batch
-- ARGV[8]: integer, ms that a batch of this subscriber waits to fill
-- ARGV[9]: integer, events that were delivered
-- ARGV[10...]: strings, the gaps that were reported with it
-- Returns 1, or 0 when the worker no longer holds the job with this batch (nothing was done).
-- Caller: Store::ack

local function main(lanes)
  local now = lanes.now(ARGV[1])
  local worker, job, token, generation = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local name, bid, events = generation .. '.' .. ARGV[6], ARGV[7], tonumber(ARGV[9])
  if not lanes.holds(worker, job, token, name, bid) then return 0 end
  local there = redis.call('LLEN', lanes.batch_key(bid)) - 3
  lanes.expect_own()
  lanes.expect('hash', KEYS[10], lanes.current_key(token), lanes.generations_key(token))
  lanes.expect('list', lanes.gaps_key(token, name))

  lanes.let_go(worker)
  redis.call('LPOP', lanes.ready_key(token, name))
  for i = 10, #ARGV do redis.call('LREM', lanes.gaps_key(token, name), 1, ARGV[i]) end
  lanes.remove(bid, token, generation, there)
  lanes.health(token, 1, now)
  redis.call('HINCRBY', KEYS[10], 'sent', events)
  redis.call('HINCRBY', KEYS[9], 'events.delivered', events)
  redis.call('HINCRBY', KEYS[9], 'batches.delivered', 1)
  lanes.settle(job, token, generation, name, tonumber(ARGV[8]), now)
  lanes.finish()
  return 1
end
