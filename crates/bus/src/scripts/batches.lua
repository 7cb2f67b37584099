
-- The batches: shared code of the scripts that take, settle or remove batches. It is appended to those scripts at
-- compile time, after lanes.lua, whose locals it uses. The publish script only appends to lanes and does without it:
-- functions cost time in each call even if they are not used.

-- Ten seconds of ids, which is the span of one segment of the log.
local SEGMENT = 64000000

function lanes.segment(id)
  return text(math.floor(tonumber(id) / SEGMENT))
end

-- An item of a batch is `id`, or `id@segment` when the event was redriven or replayed and its body was stored again. After it was
-- marked for the part of the log that is kept for subscribers to which nothing can be delivered (keep.lua), it is `-id`, which needs
-- no more memory, or `id@0`. The body is moved there when its segment is removed (trim.lua); until then it is in the segment that the
-- mark names. (Earlier versions wrote `id:0`, and `id:segment`.)
-- Returns the id as text and the segment as text.
function lanes.item(item)
  local id, segment = string.match(item, '^(%d+)[@:](%d+)$')
  if id then return id, segment end
  id = string.match(item, '^-(%d+)$')
  if id then return id, '0' end
  return item, lanes.segment(item)
end

-- Adds to a number that a script keeps in a hash. If the key has another type, nothing is added, and the number is not 0.
local function add(key, field, count)
  local sum = redis.pcall('HINCRBY', key, field, text(count))
  return type(sum) == 'number' and sum or 1
end

-- Subtracts from a number, and removes it if nothing is left.
local function subtract(key, field, count)
  local is_nothing = add(key, field, -count) <= 0
  if is_nothing then redis.call('HDEL', key, field) end
  return is_nothing
end

-- What is known of marked events, by ID: how many items need each, its bytes, the segment that had its body, and its tenant.
function lanes.kept_events(ids)
  local known, found = {}, lists.read('HMGET', base .. 'log:0:uses', ids)
  for i, id in ipairs(ids) do
    local count, size, home, tenant = string.match(found[i] or '', '^(%d+) (%d+) (%d+) (.*)$')
    -- Earlier versions moved bodies immediately and stored no segment.
    if not count then count, size, tenant = string.match(found[i] or '', '^(%d+) (%d+) (.*)$') end
    known[id] = { count = tonumber(count or 0), size = tonumber(size or 0), home = home or '0', tenant = tenant or '' }
  end
  return known
end

-- Stores it for events that items need, and removes events that no item needs.
function lanes.keep_events(known)
  local log, used, unused = base .. 'log:0', {}, {}
  for id, one in pairs(known) do
    if one.count > 0 then
      local at = #used
      used[at + 1] = id
      used[at + 2] = text(one.count) .. ' ' .. text(one.size) .. ' ' .. one.home .. ' ' .. one.tenant
    else
      unused[#unused + 1] = id
    end
  end
  lists.call('HSET', log .. ':uses', used)
  lists.call('HDEL', log .. ':uses', unused)
  lists.call('HDEL', log, unused)
end

-- The body of an event, and the bytes of it. `segment` is that of an item.
function lanes.body(id, segment)
  local body = redis.call('HGET', base .. 'log:' .. segment, id)
  if body or segment ~= '0' then return body end
  return redis.call('HGET', base .. 'log:' .. lanes.kept_events({ id })[id].home, id)
end

function lanes.body_size(id, segment)
  if segment == '0' then return lanes.kept_events({ id })[id].size end
  return redis.call('HSTRLEN', base .. 'log:' .. segment, id)
end

-- Whether a key is a hash, or may become one.
local function is_hash(key)
  local found = redis.call('TYPE', key).ok
  return found == 'hash' or found == 'none'
end

-- Frees what a subscriber needed of the part of the log that is kept (segment 0): an event is removed there when no item needs it.
-- Keys of other types keep everything.
local function free_kept(token, ids)
  local log, bytes, freed, of = base .. 'log:0', 0, 0, {}
  if not is_hash(log) or not is_hash(log .. ':uses') then return end
  local known = lanes.kept_events(ids)
  for _, id in ipairs(ids) do
    local one = known[id]
    one.count, bytes = one.count - 1, bytes + one.size
    -- A body that was not moved yet is counted in its segment.
    if one.count == 0 and one.home == '0' then
      freed = freed + one.size
      of[one.tenant] = (of[one.tenant] or 0) + one.size
    end
  end
  lanes.keep_events(known)
  subtract(log .. ':bytes', token, bytes)
  if freed > 0 then add(base .. 'log', '0', -freed) end
  of[''] = nil
  for tenant, size in pairs(of) do
    subtract(log .. ':environments', tenant, size)
    if subtract(base .. 'environments', tenant, size) then
      redis.pcall('HDEL', base .. 'environments:clients', tenant)
    end
  end
end

-- Records that a subscriber no longer needs the bodies of these items. A key of another type only keeps its segment.
function lanes.release(token, items)
  local counts, segment, from, to, count, kept = {}, nil, 0, 0, 0, {}
  for i = 1, #items do
    -- Most items of a batch are in one segment, and are compared with its ends only.
    local id = tonumber(items[i])
    if id and id < 0 then id = nil end
    if not id or id < from or id >= to then
      if segment then counts[segment] = (counts[segment] or 0) + count end
      segment, count = id and math.floor(id / SEGMENT) or tonumber(string.match(items[i], '[@:](%d+)$') or 0), 0
      from, to = id and segment * SEGMENT or 0, id and (segment + 1) * SEGMENT or 0
      if segment == 0 then kept[#kept + 1] = string.match(items[i], '%d+') end
    end
    count = count + 1
  end
  if segment then counts[segment] = (counts[segment] or 0) + count end
  for segment, count in pairs(counts) do
    local key = base .. 'log:' .. text(segment) .. ':held'
    local left = redis.pcall('HINCRBY', key, token, -count)
    if type(left) == 'number' and left <= 0 then redis.call('HDEL', key, token) end
  end
  if #kept > 0 then free_kept(token, kept) end
end

function lanes.pending_key(worker) return base .. 'jobs:pending:main:' .. worker end

-- A gap that spans the items of a batch.
function lanes.gap_of(token, name, items, reason)
  local first, last
  for i = 1, #items do
    local id = math.abs(tonumber(items[i]) or tonumber((lanes.item(items[i]))))
    if not first or id < first then first = id end
    if not last or id > last then last = id end
  end
  if first then lanes.gap(token, name, text(first), text(last), #items, reason) end
end

-- The oldest events of a batch, at most `most`, and whether it has more. `head` are the values that are before the events.
function lanes.oldest_of(bid, most)
  local batch = redis.call('LRANGE', batch_key(bid), 0, 2 + most)
  local head = { batch[1], batch[2], batch[3] }
  return lists.copy(batch, 4), head, redis.call('LLEN', batch_key(bid)) > #batch
end

-- Removes these events from a batch that has more. Redis accepts the LPOP at its memory limit, and then everything after it.
function lanes.cut(bid, items, head)
  redis.call('LPOP', batch_key(bid), #items + 3)
  redis.call('LPUSH', batch_key(bid), head[3], head[2], head[1])
end

-- Adds dead letters to those of a subscriber, and removes its oldest beyond the limits in events and bytes. `list` is the key
-- of its dead letters, `sizes` that of the bytes by token. At most twice as much is removed as is added, and some more, so a
-- list whose limits were lowered shrinks to them without a long call.
function lanes.keep_dead(list, sizes, token, letters, max_events, max_bytes)
  local added, removed, freed = 0, 0, 0
  lists.call('RPUSH', list, letters)
  for i = 1, #letters do added = added + #letters[i] end
  local kept, held = redis.call('LLEN', list), tonumber(redis.call('HGET', sizes, token) or 0) + added
  while kept > removed and (kept - removed > max_events or held - freed > max_bytes)
    and removed < 2 * #letters + 100 and freed < 2 * added + 1048576 do
    freed = freed + #redis.call('LPOP', list)
    removed = removed + 1
  end
  redis.call('HINCRBY', sizes, token, lanes.text(added - freed))
  if removed > 0 then redis.call('HINCRBY', KEYS[9], 'events.dead_forgotten', removed) end
end

-- The oldest generation that has batches, by token; 0 if none has. A call that takes jobs changes no generation, and it asks
-- for every job.
local oldest = {}

-- Whether lanes of an older generation still have batches, so that this one has to wait.
function lanes.must_wait(token, generation)
  if not oldest[token] then
    oldest[token] = 0
    for _, older in ipairs(lanes.generations(token)) do
      if older.batches > 0 then
        oldest[token] = tonumber(older.name)
        break
      end
    end
  end
  return oldest[token] > 0 and oldest[token] < tonumber(generation)
end

-- Removes a batch that is not in any list.
function lanes.remove(bid, token, generation, events)
  redis.call('ZREM', KEYS[1], bid)
  redis.call('UNLINK', batch_key(bid))
  lanes.count(token, generation, -events, -1)
end

-- Makes the next job ready that waits until a delivery to the subscriber ends, or all of them. A job that waits has a job
-- before it that is held, or ready, or waits for a slow delivery: whichever way that one leaves its state, this is called.
function lanes.next_in_line(token, all)
  local key = lanes.behind_key(token)
  for _ = 1, all and redis.call('LLEN', key) or 1 do
    local job = redis.call('LPOP', key)
    if not job then return end
    lanes.instant(job)
  end
end

-- Removes a job of a lane without batches that no worker holds. If the job can be taken, it stays: a search would pass over the
-- jobs of all subscribers. A worker that takes it finds that its lane is empty, and removes it.
function lanes.withdraw(token, job)
  if redis.call('ZREM', KEYS[5], job) + redis.call('SREM', lanes.waiting_key(token), job)
    + redis.call('LREM', lanes.behind_key(token), 1, job) > 0 then redis.call('SREM', KEYS[4], job) end
end

-- How often the pauses of a subscriber's lanes were ended. If that changes while a job is held, what its worker knows of
-- the receiver is outdated: the lane does not pause because of it.
function lanes.kicks(token)
  return redis.call('HGET', base .. 'subscriber:' .. token, 'kicks') or '0'
end

-- Puts a job that was held into its next state, which depends on the current content of its lane: events that were
-- appended in the meantime did not create another job. `kicks` is what `holds` returned. If the subscription has changed
-- since then, `timeout` may be outdated, so a batch that fills is not waited for.
function lanes.settle(job, token, generation, name, timeout, now, kicks)
  if redis.call('EXISTS', ready_key(token, name)) == 1 then return lanes.instant(job) end
  local bid = redis.call('HGET', current_key(token), name)
  if not bid then
    redis.call('SREM', KEYS[4], job)
    return
  end
  local due = tonumber(redis.call('LINDEX', batch_key(bid), 1) or 0) + timeout
  if due <= now or lanes.kicks(token) ~= kicks then return lanes.instant(job) end
  lanes.schedule(job, due)
end

-- If the worker holds the job and the batch is still in flight, returns `kicks` of the time when it was taken. A worker
-- whose job was taken away holds none; after a lost reply the job may already be held for the lane's next batch. If the
-- subscription has ended, returns false, and true if the worker has to `abandon` the job.
function lanes.holds(worker, job, token, name, bid)
  local held = redis.call('LRANGE', lanes.pending_key(worker), 0, 1)
  if held[1] ~= job then return false end
  -- The lanes are removed in parts, first their jobs.
  if lanes.has_ended(token, string.match(name, '^%d+')) or redis.call('SISMEMBER', KEYS[4], job) == 0 then
    return false, true
  end
  return redis.call('LINDEX', ready_key(token, name), 0) == bid and (held[2] or '0')
end

-- Releases a worker that holds a job of a subscription that ended. Whatever became of the delivery, nothing is stored of it: the
-- counters and dead letters of the subscription are removed already, and those of a later one are not its own.
function lanes.abandon(worker, job, token)
  lanes.expect_own()
  lanes.expect('list', lanes.behind_key(token))
  lanes.let_go(worker)
  redis.call('SREM', KEYS[4], job)
  lanes.next_in_line(token)
end

-- Releases a worker's job. Redis accepts the DEL at its memory limit, and then everything after it.
function lanes.let_go(worker)
  redis.call('DEL', lanes.pending_key(worker))
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
