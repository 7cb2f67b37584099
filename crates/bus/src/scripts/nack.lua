-- Makes the job of a batch that was not delivered wait before the next attempt. The batch can be halved, so that one
-- bad event is found without dropping its neighbors.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2-7]: worker, the job it holds, token of the subscriber, generation and number of the lane, batch
-- ARGV[8]: integer, ms to wait; the job is ready if the pauses of the subscriber were ended since it was taken
-- ARGV[9]: integer, points to add to the subscriber's health
-- ARGV[10]: integer, attempts to add to the batch (0 when none was made)
-- ARGV[11]: integer, 1 to halve the batch
-- ARGV[12]: string, sixteen random characters
-- Returns 1; 2 when the subscriber was in full health before; 0 when the worker no longer holds the job with this batch
-- (nothing was done).
-- Caller: Store::nack

local function main(lanes)
  local call = redis.call
  local now = lanes.now(ARGV[1])
  local worker, job, token, generation = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local name, bid = generation .. '.' .. ARGV[6], ARGV[7]
  local kicks, has_ended = lanes.holds(worker, job, token, name, bid)
  if has_ended then lanes.abandon(worker, job, token) end
  if not kicks then return 0 end
  local batch, is_halved = lanes.batch_key(bid), ARGV[11] == '1'
  local items = call('LRANGE', batch, 0, is_halved and -1 or 2)
  lanes.expect_own()
  lanes.expect('hash', lanes.base .. 'subscriber:' .. token, lanes.generations_key(token))
  lanes.expect('list', lanes.behind_key(token))

  local pacing_begins = false
  lanes.let_go(worker)
  local attempts = (tonumber(items[3]) or 0) + tonumber(ARGV[10])
  if is_halved and #items > 4 then
    local new_bid, ready = lanes.bids(ARGV[12]), lanes.ready_key(token, name)
    local middle = 3 + math.ceil((#items - 3) / 2)
    local first, second = new_bid(), new_bid()
    -- The later half starts with zero attempts.
    for _, part in ipairs({ { first, 4, middle, attempts }, { second, middle + 1, #items, 0 } }) do
      local half = lanes.batch_key(part[1])
      call('RPUSH', half, token, items[2], lanes.text(part[4]))
      lists.call('RPUSH', half, items, part[2], part[3])
      call('ZADD', KEYS[1], items[2], part[1])
    end
    call('LPOP', ready)
    call('LPUSH', ready, second, first)
    lanes.count(token, generation, 0, 2)
    lanes.remove(bid, token, generation, 0)
    call('HINCRBY', KEYS[9], 'batches.split', 1)
  else
    call('LSET', batch, 2, lanes.text(attempts))
  end
  if ARGV[10] ~= '0' then
    pacing_begins = lanes.health(token, tonumber(ARGV[9]), now) - tonumber(ARGV[9]) == 100
    call('HINCRBY', KEYS[9], 'batches.failed', 1)
  end
  if ARGV[8] == '0' or lanes.kicks(token) ~= kicks then
    lanes.instant(job)
  else
    lanes.schedule(job, now + tonumber(ARGV[8]))
  end
  lanes.next_in_line(token)
  return pacing_begins and 2 or 1
end
