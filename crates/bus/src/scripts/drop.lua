-- Drops the oldest batch of a subscriber that is not in flight, or its oldest events if it has many, and records the gap. The
-- reason to drop is checked in the same step, because the subscriber may have caught up in the meantime. Batches of a
-- subscription that ended are not dropped but removed (`purge.lua`): they are not the present subscription's. Its first write
-- frees memory, so it works at the memory limit.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token of the subscriber
-- ARGV[2]: string, reason, for the gap
-- ARGV[3]: integer, number of waiting events that the subscriber keeps; empty if it keeps none
-- ARGV[4]: integer, segment of the log that is to be freed; empty for any. Only a batch that may need it is dropped.
-- Returns an array: how many events were dropped, which may be 0 for a batch without any, and -1 when nothing can be dropped; and how
-- many bytes of them the segment has.
-- Caller: Store::drop_oldest, Store::drop_above, Store::drop_from

-- Ten seconds in ms, which is the span of one segment of the log.
local SEGMENT_MS = 10000
local EPOCH = 1704067200000
-- Maximum number of events that a call drops.
local MAX_EVENTS = 2000

-- Whether the subscriber has too many events, or needs the segment.
local function has_reason(lanes, token)
  if ARGV[3] ~= '' and tonumber(redis.call('HGET', KEYS[2], token) or 0) <= tonumber(ARGV[3]) then return false end
  return ARGV[4] == '' or redis.call('HEXISTS', lanes.base .. 'log:' .. ARGV[4] .. ':held', token) == 1
end

-- The bytes that these events have in the segment.
local function bytes_there(lanes, items)
  local bytes = 0
  if ARGV[4] == '' then return bytes end
  for i = 1, #items do
    local id, segment = lanes.item(items[i])
    if segment == ARGV[4] then bytes = bytes + lanes.body_size(id, segment) end
  end
  return bytes
end

local function main(lanes)
  local call = redis.call
  local token = ARGV[1]
  lanes.expect_own()
  if not has_reason(lanes, token) then return { -1, 0 } end
  local in_flight = {}
  for _, worker in ipairs(call('SMEMBERS', KEYS[7])) do
    local job = call('LINDEX', lanes.pending_key(worker), 0)
    if job then in_flight[job] = true end
  end

  -- The oldest batch of a lane is the head of its ready list (the next one while the head is in flight), otherwise its
  -- current one.
  local oldest
  for _, generation in ipairs(lanes.generations(token)) do
    local count = lanes.has_ended(token, generation.name) and 0 or generation.lanes
    for number = 0, count - 1 do
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
  if not oldest then return { -1, 0 } end
  -- What was published after the segment ended is not in it: the batch that needs it is in flight. Segment 0 has events of any
  -- time.
  if ARGV[4] ~= '' and ARGV[4] ~= '0' and oldest.created >= EPOCH + (tonumber(ARGV[4]) + 1) * SEGMENT_MS then return { -1, 0 } end
  local items, head, more = lanes.oldest_of(oldest.bid, MAX_EVENTS)
  local bytes = bytes_there(lanes, items)

  if more then
    lanes.cut(oldest.bid, items, head)
  else
    call('ZREM', KEYS[1], oldest.bid)
    -- The batch is the first or the second one of the list.
    if oldest.ready then
      call('LREM', lanes.ready_key(token, oldest.name), 1, oldest.bid)
    else
      call('HDEL', lanes.current_key(token), oldest.name, oldest.name .. ':bytes')
    end
  end
  lanes.gap_of(token, oldest.name, items, ARGV[2])
  lanes.release(token, items)
  call('HINCRBY', KEYS[9], 'events.dropped', #items)
  if more then
    lanes.count(token, oldest.generation, -#items, 0)
    return { #items, bytes }
  end
  lanes.remove(oldest.bid, token, oldest.generation, #items)
  -- A lane without a batch has no job. A lane that still has batches keeps its job in its state.
  if not in_flight[oldest.job] and call('EXISTS', lanes.ready_key(token, oldest.name)) == 0
    and call('HEXISTS', lanes.current_key(token), oldest.name) == 0 then
    lanes.withdraw(token, oldest.job)
  end
  return { #items, bytes }
end
