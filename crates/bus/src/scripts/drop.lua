-- Drops the oldest batch of a subscriber that is not in flight, and records the gap. Its first write frees memory, so
-- it works at the memory limit.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token of the subscriber
-- ARGV[2]: string, reason, for the gap
-- Returns how many events were dropped; 0 when nothing can be dropped.
-- Caller: Store::drop_oldest

local function main(lanes)
  local call = redis.call
  local token = ARGV[1]
  lanes.expect_own()
  local in_flight = {}
  for _, worker in ipairs(call('SMEMBERS', KEYS[7])) do
    local job = call('LINDEX', lanes.pending_key(worker), 0)
    if job then in_flight[job] = true end
  end

  -- The oldest batch of a lane is the head of its ready list (the next one while the head is in flight), otherwise its
  -- current one.
  local oldest
  for _, generation in ipairs(lanes.generations(token)) do
    for number = 0, generation.lanes - 1 do
      local name = generation.name .. '.' .. number
      local job = lanes.job(token, generation.name, number)
      local at = in_flight[job] and 1 or 0
      local ready, bid = true, call('LINDEX', lanes.ready_key(token, name), at)
      if not bid then
        ready, bid = false, call('HGET', lanes.current_key(token), name)
      end
      local created = bid and tonumber(call('LINDEX', lanes.batch_key(bid), 1) or 0)
      if bid and (not oldest or created < oldest.created) then
        oldest = { bid = bid, created = created, name = name, job = job, ready = ready, at = at,
          generation = generation.name }
      end
    end
  end
  if not oldest then return 0 end
  local items = call('LRANGE', lanes.batch_key(oldest.bid), 3, -1)

  call('ZREM', KEYS[1], oldest.bid)
  if oldest.ready then
    call('LREM', lanes.ready_key(token, oldest.name), 1, oldest.bid)
  else
    call('HDEL', lanes.current_key(token), oldest.name, oldest.name .. ':bytes')
  end
  lanes.gap_of(token, oldest.name, items, ARGV[2])
  lanes.remove(oldest.bid, token, oldest.generation, #items)
  lanes.release(token, items)
  call('HINCRBY', KEYS[9], 'events.dropped', #items)
  -- A lane without a batch has no job. A lane that still has batches keeps its job in its state.
  if not in_flight[oldest.job] and call('EXISTS', lanes.ready_key(token, oldest.name)) == 0
    and call('HEXISTS', lanes.current_key(token), oldest.name) == 0 then
    lanes.withdraw(token, oldest.job)
  end
  return #items
end
