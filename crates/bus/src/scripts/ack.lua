-- Removes batches that were delivered, and continues with their lanes. Many acknowledgements share a call, because most
-- of the cost of a call is the same for one and for many.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10...]: hash, counters of the subscription, for each acknowledgement
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2...]: for each acknowledgement the worker, the job that it holds, the token of the subscriber, the generation and
-- the number of the lane, the batch, ms that a batch of this subscriber waits to fill, the number of events that were
-- delivered, the number of gaps that were reported with it, and these gaps
-- Returns an array: for each acknowledgement 1, or 0 when the worker no longer holds the job with this batch (nothing was
-- done).
-- Caller: Store::ack

-- Reads the acknowledgements, and checks the keys that they change. Returns the valid ones, those of subscriptions that ended,
-- and a reply for each.
local function read_acks(lanes)
  local acks, ended, replies, at = {}, {}, {}, 2
  while ARGV[at] do
    local place, gaps = #replies + 1, tonumber(ARGV[at + 8])
    local ack = {
      worker = ARGV[at], job = ARGV[at + 1], token = ARGV[at + 2], generation = ARGV[at + 3],
      name = ARGV[at + 3] .. '.' .. ARGV[at + 4], bid = ARGV[at + 5], timeout = tonumber(ARGV[at + 6]),
      events = tonumber(ARGV[at + 7]), gaps = lists.copy(ARGV, at + 9, at + 8 + gaps), counters = KEYS[9 + place],
    }
    replies[place] = 0
    ack.kicks, ack.has_ended = lanes.holds(ack.worker, ack.job, ack.token, ack.name, ack.bid)
    if ack.has_ended then
      lanes.expect('list', lanes.behind_key(ack.token))
      ended[#ended + 1] = ack
    elseif ack.kicks then
      ack.items = redis.call('LRANGE', lanes.batch_key(ack.bid), 3, -1)
      lanes.expect('hash', ack.counters, lanes.current_key(ack.token), lanes.generations_key(ack.token))
      lanes.expect('list', lanes.gaps_key(ack.token, ack.name), lanes.behind_key(ack.token))
      acks[#acks + 1], replies[place] = ack, 1
    end
    at = at + 9 + gaps
  end
  return acks, ended, replies
end

local function main(lanes)
  local now = lanes.now(ARGV[1])
  local acks, ended, replies = read_acks(lanes)
  lanes.expect_own()

  for i = 1, #ended do lanes.abandon(ended[i].worker, ended[i].job, ended[i].token) end
  if #acks == 0 then return replies end
  local events = 0
  for i = 1, #acks do
    local ack = acks[i]
    lanes.let_go(ack.worker)
    redis.call('LPOP', lanes.ready_key(ack.token, ack.name))
    for g = 1, #ack.gaps do redis.call('LREM', lanes.gaps_key(ack.token, ack.name), 1, ack.gaps[g]) end
    lanes.remove(ack.bid, ack.token, ack.generation, #ack.items)
    lanes.release(ack.token, ack.items)
    lanes.health(ack.token, 1, now)
    redis.call('HINCRBY', ack.counters, 'sent', ack.events)
    lanes.settle(ack.job, ack.token, ack.generation, ack.name, ack.timeout, now, ack.kicks)
    lanes.next_in_line(ack.token, true)
    events = events + ack.events
  end
  redis.call('HINCRBY', KEYS[9], 'events.delivered', events)
  redis.call('HINCRBY', KEYS[9], 'batches.delivered', #acks)
  return replies
end
