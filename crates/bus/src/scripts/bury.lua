-- Drops a batch, part by part: its events become dead letters with their bodies, and gaps are recorded. After the last part,
-- the lane continues.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: list, dead letters of the subscriber, oldest first
-- KEYS[11]: hash, bytes of dead letters by token
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2-7]: worker, the job it holds, token of the subscriber, generation and number of the lane, batch
-- ARGV[8]: integer, ms that a batch of this subscriber waits to fill
-- ARGV[9]: string, reason of the last failure
-- ARGV[10]: integer, attempts to add to the batch
-- ARGV[11]: integer, maximum number of dead letters, events
-- ARGV[12]: integer, maximum size of dead letters, bytes
-- ARGV[13]: integer, points to add to the subscriber's health
-- Returns 1; 2 when the batch has more events, and the worker still holds the job; 0 when the worker no longer holds the job
-- with this batch (nothing was done).
-- Caller: Store::bury

-- Maximum number of events in a part.
local MAX_EVENTS = 250

local function main(lanes)
  local call = redis.call
  local now = lanes.now(ARGV[1])
  local worker, job, token, generation = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local name, bid = generation .. '.' .. ARGV[6], ARGV[7]
  local kicks, has_ended = lanes.holds(worker, job, token, name, bid)
  if has_ended then lanes.abandon(worker, job, token) end
  if not kicks then return 0 end
  local items, head, more = lanes.oldest_of(bid, MAX_EVENTS)
  lanes.expect_own()
  lanes.expect('list', KEYS[10], lanes.gaps_key(token, name), lanes.behind_key(token))
  lanes.expect('hash', KEYS[11], lanes.base .. 'subscriber:' .. token, lanes.generations_key(token))
  -- Bodies are read before the first write. A batch is limited in bytes, so this is bounded.
  local bodies = {}
  for i = 1, #items do
    local id, segment = lanes.item(items[i])
    bodies[i] = lanes.body(id, segment)
  end

  -- In both cases, the first write frees memory, so Redis accepts it and everything after it at its memory limit.
  if more then
    lanes.cut(bid, items, head)
  else
    lanes.let_go(worker)
    call('LPOP', lanes.ready_key(token, name))
  end
  local attempts, letters = (tonumber(head[3]) or 0) + tonumber(ARGV[10]), {}
  for i = 1, #items do
    if bodies[i] then
      letters[#letters + 1] = cmsgpack.pack({ lanes.text(now), lanes.text(attempts), ARGV[9], bodies[i] })
    end
  end
  lanes.keep_dead(KEYS[10], KEYS[11], token, letters, tonumber(ARGV[11]), tonumber(ARGV[12]))
  lanes.gap_of(token, name, items, 'dead')
  lanes.release(token, items)
  call('HINCRBY', KEYS[9], 'events.dead', #items)
  if more then
    lanes.count(token, generation, -#items, 0)
    return 2
  end
  lanes.remove(bid, token, generation, #items)
  if ARGV[10] ~= '0' then lanes.health(token, tonumber(ARGV[13]), now) end
  lanes.settle(job, token, generation, name, tonumber(ARGV[8]), now, kicks)
  lanes.next_in_line(token)
  return 1
end
