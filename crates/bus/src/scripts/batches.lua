
-- The batches: shared code of the scripts that take, settle or remove batches. It is appended to those scripts at
-- compile time, after lanes.lua, whose locals it uses. The publish script only appends to lanes and does without it:
-- functions cost time in each call even if they are not used.

-- Ten seconds of ids, which is the span of one segment of the log.
local SEGMENT = 64000000

function lanes.segment(id)
  return text(math.floor(tonumber(id) / SEGMENT))
end

-- An item of a batch is `id`, or `id@segment` when the event was redriven or replayed and its body was stored again.
-- Returns the id as text and the segment as text.
function lanes.item(item)
  local id, segment = string.match(item, '^(%d+)@(%d+)$')
  if id then return id, segment end
  return item, lanes.segment(item)
end

-- Records that a subscriber no longer needs the bodies of these items. A key of another type only keeps its segment.
function lanes.release(token, items)
  local counts = {}
  for i = 1, #items do
    local id = tonumber(items[i])
    local segment = id and math.floor(id / SEGMENT) or tonumber(string.match(items[i], '@(%d+)$'))
    counts[segment] = (counts[segment] or 0) + 1
  end
  for segment, count in pairs(counts) do
    local key = base .. 'log:' .. text(segment) .. ':held'
    local left = redis.pcall('HINCRBY', key, token, -count)
    if type(left) == 'number' and left <= 0 then redis.call('HDEL', key, token) end
  end
end

function lanes.pending_key(worker) return base .. 'jobs:pending:main:' .. worker end

-- A gap that spans the items of a batch.
function lanes.gap_of(token, name, items, reason)
  local first, last
  for i = 1, #items do
    local id = lanes.item(items[i])
    if not first or tonumber(id) < tonumber(first) then first = id end
    if not last or tonumber(id) > tonumber(last) then last = id end
  end
  if first then lanes.gap(token, name, first, last, #items, reason) end
end

-- Adds dead letters to those of a subscriber, and removes its oldest beyond the limits in events and bytes. `list` is the key
-- of its dead letters, `sizes` that of the bytes by token.
function lanes.keep_dead(list, sizes, token, letters, max_events, max_bytes)
  local bytes, kept = 0, 0
  for i = 1, #letters do
    kept = redis.call('RPUSH', list, letters[i])
    bytes = bytes + #letters[i]
  end
  local held = redis.call('HINCRBY', sizes, token, bytes)
  while kept > max_events or (held > max_bytes and kept > 0) do
    local oldest = redis.call('LPOP', list)
    kept = kept - 1
    held = redis.call('HINCRBY', sizes, token, -#oldest)
    redis.call('HINCRBY', KEYS[9], 'events.dead_forgotten', 1)
  end
end

-- Whether lanes of an older generation still have batches, so that this one has to wait.
function lanes.must_wait(token, generation)
  for _, older in ipairs(lanes.generations(token)) do
    if older.batches > 0 then return tonumber(older.name) < tonumber(generation) end
  end
  return false
end

-- Removes a batch that is not in any list.
function lanes.remove(bid, token, generation, events)
  redis.call('ZREM', KEYS[1], bid)
  redis.call('UNLINK', batch_key(bid))
  lanes.count(token, generation, -events, -1)
end

-- Puts a job that was held into its next state, which depends on the current content of its lane: events that were
-- appended in the meantime did not create another job.
function lanes.settle(job, token, generation, name, timeout, now)
  if redis.call('EXISTS', ready_key(token, name)) == 1 then return lanes.instant(job) end
  local bid = redis.call('HGET', current_key(token), name)
  if not bid then
    redis.call('SREM', KEYS[4], job)
    return
  end
  local due = tonumber(redis.call('LINDEX', batch_key(bid), 1) or 0) + timeout
  if due <= now then return lanes.instant(job) end
  lanes.schedule(job, due)
end

-- Whether the worker holds the job and the batch is still in flight. A worker whose job was taken away holds none;
-- after a lost reply the job may already be held for the lane's next batch.
function lanes.holds(worker, job, token, name, bid)
  return redis.call('LINDEX', lanes.pending_key(worker), 0) == job
    and redis.call('LINDEX', ready_key(token, name), 0) == bid
end

-- Releases a worker's job. Redis accepts the LPOP at its memory limit, and then everything after it.
function lanes.let_go(worker)
  redis.call('LPOP', lanes.pending_key(worker))
  redis.call('SREM', KEYS[7], worker)
  redis.call('HDEL', KEYS[8], worker)
end

-- Updates the health of a subscriber after an attempt, and counts a failure. Returns the health, 0...100.
function lanes.health(token, delta, now)
  local key = base .. 'subscriber:' .. token
  local points = tonumber(redis.call('HGET', key, 'health_points') or 100) + delta
  if points > 100 then points = 100 end
  if points < 0 then points = 0 end
  redis.call('HSET', key, 'health_points', text(points), 'last_attempted_at', text(now))
  if delta < 0 then redis.call('HINCRBY', key, 'failed', 1) end
  return points
end
