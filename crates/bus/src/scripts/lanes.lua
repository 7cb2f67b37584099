
-- The lanes: what every script that touches batches and jobs has in common. Not a script of its own: it is appended
-- to those scripts at compile time, which define `main(lanes)` above. Their first nine KEYS are the ones of this
-- file, in this order:
--   1 zset  bus:batches:index          batch id -> created, unix ms
--   2 hash  bus:batches:gauges:event   token -> events in batches
--   3 hash  bus:batches:gauges:batch   token -> batches
--   4 set   bus:jobs:index:main        every job, in whatever state
--   5 zset  bus:jobs:scheduled:main    job -> due, unix ms
--   6 list  bus:jobs:instant:main      jobs to be taken
--   7 set   bus:jobs:pending:index:main workers that hold a job
--   8 hash  bus:workers                worker -> last heartbeat, unix ms
--   9 hash  bus:counters               telemetry
-- Keys that only the script can know (which lane is touched, which batch is current, which segment an id lies in) are
-- built from the first one, so they carry its hash tag and live in its shard.
--
-- A lane's job exists exactly while the lane has a batch, ready or current: the batch in flight stays the head of
-- the ready list until it is settled. So the two reads of `plan` tell whether a job has to be made.

local lanes = {}
local base = string.match(KEYS[1], '^(.*)batches:index$')
lanes.base = base
-- What the keys of single objects begin with.
lanes.objects = string.match(base, '^(.*)bus:$') .. 'object:'

-- Ten seconds of ids: the span of one segment of the log.
local SEGMENT = 64000000
-- Gaps that one lane may have waiting; more are merged into the last.
local GAPS = 64

local wake

function lanes.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lua's own conversion writes 1.7e+15; ids and times must keep every digit.
local function text(number)
  return string.format('%.0f', number)
end
lanes.text = text

function lanes.segment(id)
  return text(math.floor(tonumber(id) / SEGMENT))
end

-- An item of a batch is `id`, or `id@segment` when the event was put into a lane again (redriven, replayed) and its
-- body was stored again with it. Returns the id as text and the segment as text.
function lanes.item(item)
  local id, segment = string.match(item, '^(%d+)@(%d+)$')
  if id then return id, segment end
  return item, lanes.segment(item)
end

-- Raises an error unless each key is absent or of the type. Redis does not undo a script that fails half-way, so
-- what a foreign key could break is looked at before the first write.
function lanes.expect(kind, ...)
  for _, key in ipairs({ ... }) do
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind })
    end
  end
end

function lanes.expect_own()
  lanes.expect('zset', KEYS[1], KEYS[5])
  lanes.expect('hash', KEYS[2], KEYS[3], KEYS[8], KEYS[9])
  lanes.expect('set', KEYS[4], KEYS[7])
  lanes.expect('list', KEYS[6])
end

function lanes.job(token, generation, number)
  return cmsgpack.pack({ 'lane', { token, tonumber(generation), tonumber(number) } })
end

local function batch_key(bid) return base .. 'batch:' .. bid end
local function current_key(token) return base .. 'batches:current:' .. token end
local function ready_key(token, name) return base .. 'batches:ready:' .. token .. ':' .. name end
local function generations_key(token) return base .. 'generations:' .. token end
local function gaps_key(token, name) return base .. 'gaps:' .. token .. ':' .. name end
local function waiting_key(token) return base .. 'jobs:waiting:' .. token end
lanes.batch_key, lanes.current_key, lanes.ready_key = batch_key, current_key, ready_key
lanes.generations_key, lanes.gaps_key, lanes.waiting_key = generations_key, gaps_key, waiting_key

function lanes.pending_key(worker) return base .. 'jobs:pending:main:' .. worker end

-- Makes a job one that can be taken. Who has found the list empty sleeps, and is woken.
function lanes.instant(job)
  if redis.call('RPUSH', KEYS[6], job) == 1 then wake = 'now' end
end

-- Makes a job wait until `due`. Who sleeps does so until the earliest due time, and is told of an earlier one.
function lanes.schedule(job, due)
  redis.call('ZADD', KEYS[5], text(due), job)
  if not wake and redis.call('ZRANK', KEYS[5], job) == 0 then wake = text(due) end
end

-- To be called last: wakes sleepers, once for the call.
function lanes.finish()
  if wake then redis.call('PUBLISH', base .. 'wake', wake) end
end

-- The generations of a token: an array of { name, batches, lanes }, oldest first.
function lanes.generations(token)
  local flat = redis.call('HGETALL', generations_key(token))
  local by_name, list = {}, {}
  for i = 1, #flat, 2 do
    local name, of_lanes = string.match(flat[i], '^(%d+)(:?l?a?n?e?s?)$')
    local generation = by_name[name]
    if not generation then
      generation = { name = name, batches = 0, lanes = 0 }
      by_name[name] = generation
      list[#list + 1] = generation
    end
    if of_lanes == '' then generation.batches = tonumber(flat[i + 1]) else generation.lanes = tonumber(flat[i + 1]) end
  end
  table.sort(list, function(a, b) return tonumber(a.name) < tonumber(b.name) end)
  return list
end

-- Records that a range of a lane's events is not known delivered.
function lanes.gap(token, name, first, last, count, reason)
  local key = gaps_key(token, name)
  local entry = first .. ' ' .. last .. ' ' .. text(count) .. ' ' .. reason
  if redis.call('RPUSH', key, entry) > GAPS then
    local newer, older = redis.call('RPOP', key), redis.call('RPOP', key)
    local f1, l1, c1, why = string.match(older, '^(%d+) (%d+) (%d+) (.*)$')
    local f2, l2, c2 = string.match(newer, '^(%d+) (%d+) (%d+) ')
    if tonumber(f2) < tonumber(f1) then f1 = f2 end
    if tonumber(l2) > tonumber(l1) then l1 = l2 end
    redis.call('RPUSH', key, f1 .. ' ' .. l1 .. ' ' .. text(c1 + c2) .. ' ' .. why)
  end
end

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

-- Ends a generation that has no batch left when there is a newer one: what its lanes lost is told by every lane of
-- the next (an object's new lane cannot be known from here), and jobs that waited for it may be taken.
local function retire(token, generations, at)
  local old, next_one = generations[at], generations[at + 1]
  for number = 0, old.lanes - 1 do
    local key = gaps_key(token, old.name .. '.' .. number)
    for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do
      local first, last, count, reason = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
      for heir = 0, next_one.lanes - 1 do
        lanes.gap(token, next_one.name .. '.' .. heir, first, last, tonumber(count), reason)
      end
    end
    redis.call('DEL', key)
  end
  redis.call('HDEL', generations_key(token), old.name, old.name .. ':lanes')
  for _, job in ipairs(redis.call('SMEMBERS', waiting_key(token))) do lanes.instant(job) end
  redis.call('DEL', waiting_key(token))
end

-- Starts a generation: lanes of older ones need not wait for their batches to fill any more.
local function begin(sub)
  redis.call('HSET', generations_key(sub.token), sub.generation, 0, sub.generation .. ':lanes', sub.concurrency)
  local generations = lanes.generations(sub.token)
  for at = 1, #generations - 1 do
    local old = generations[at]
    if old.batches == 0 then
      retire(sub.token, generations, at)
    else
      for number = 0, old.lanes - 1 do
        local job = lanes.job(sub.token, old.name, number)
        -- A lane with a ready batch that is scheduled pauses after a failure, and nothing shortens that.
        if redis.call('EXISTS', ready_key(sub.token, old.name .. '.' .. number)) == 0
          and redis.call('ZREM', KEYS[5], job) == 1 then
          lanes.instant(job)
        end
      end
    end
  end
end

-- Whether lanes of an older generation still hold batches, so that this one has to wait.
function lanes.must_wait(token, generation)
  for _, older in ipairs(lanes.generations(token)) do
    if older.batches > 0 then return tonumber(older.name) < tonumber(generation) end
  end
  return false
end

local function add_to_gauge(key, field, delta)
  if redis.call('HINCRBY', key, field, text(delta)) <= 0 then redis.call('HDEL', key, field) end
end

-- Moves the numbers of a token: events and batches that are there, batches by generation.
function lanes.count(token, generation, events, batches)
  if events ~= 0 then add_to_gauge(KEYS[2], token, events) end
  if batches == 0 then return end
  add_to_gauge(KEYS[3], token, batches)
  local left = redis.call('HINCRBY', generations_key(token), generation, batches)
  if left <= 0 and batches < 0 then
    local generations = lanes.generations(token)
    for at = 1, #generations - 1 do
      if generations[at].name == generation then return retire(token, generations, at) end
    end
  end
end

-- Forgets a batch that is in no list any more.
function lanes.remove(bid, token, generation, events)
  redis.call('ZREM', KEYS[1], bid)
  redis.call('UNLINK', batch_key(bid))
  lanes.count(token, generation, -events, -1)
end

-- Reads what appending to some lanes of a subscriber has to know. `sub` has token, generation, concurrency, max,
-- timeout, bytes (of a batch). Returns a state for each number of `numbers`.
function lanes.plan(sub, numbers)
  local fields = {}
  for i = 1, #numbers do
    local name = sub.generation .. '.' .. numbers[i]
    fields[2 * i - 1] = name
    fields[2 * i] = name .. ':bytes'
  end
  local current = redis.call('HMGET', current_key(sub.token), unpack(fields))
  sub.begun = redis.call('HEXISTS', generations_key(sub.token), sub.generation .. ':lanes') == 1
  local states = {}
  for i = 1, #numbers do
    local state = { sub = sub, number = numbers[i], name = fields[2 * i - 1] }
    state.ready = redis.call('LLEN', ready_key(sub.token, state.name))
    local bid = current[2 * i - 1]
    if bid then
      state.count = redis.call('LLEN', batch_key(bid)) - 3
      state.bytes = tonumber(current[2 * i] or 0)
      state.bid = bid
      state.had_current = true
    end
    states[i] = state
  end
  return states
end

-- Moves the numbers of a subscriber after appending to some of its lanes: once for all of them.
function lanes.counted(sub)
  if sub.events then lanes.count(sub.token, sub.generation, sub.events, sub.batches) end
end

-- Appends items to a lane, batch after batch, and makes or wakes its job. `sizes` are the bytes of the items'
-- bodies, `new_bid` makes batch ids. The caller ends with `counted`.
function lanes.append(state, items, sizes, now, new_bid)
  local sub, token = state.sub, state.sub.token
  if not sub.begun then
    begin(sub)
    sub.begun = true
  end
  local at, total, batches, promoted = 1, #items, 0, false
  while at <= total do
    local args = {}
    if not state.bid then
      state.bid, state.count, state.bytes, state.created = new_bid(), 0, 0, now
      args = { token, text(now), '0' }
      redis.call('ZADD', KEYS[1], text(now), state.bid)
      batches = batches + 1
    end
    local n = #args
    while at <= total and state.count < sub.max
      and (state.count == 0 or state.bytes + sizes[at] <= sub.bytes) do
      n = n + 1
      args[n] = items[at]
      state.count = state.count + 1
      state.bytes = state.bytes + sizes[at]
      at = at + 1
    end
    if n > 0 then redis.call('RPUSH', batch_key(state.bid), unpack(args)) end
    if at <= total or state.count >= sub.max then
      redis.call('RPUSH', ready_key(token, state.name), state.bid)
      state.bid = nil
      promoted = true
    end
  end
  if state.bid then
    redis.call('HSET', current_key(token), state.name, state.bid, state.name .. ':bytes', text(state.bytes))
  elseif state.had_current then
    redis.call('HDEL', current_key(token), state.name, state.name .. ':bytes')
  end
  sub.events = (sub.events or 0) + total
  sub.batches = (sub.batches or 0) + batches

  if state.ready > 0 then return end -- in flight, waiting to be taken, or pausing: there is a job and it will look
  if not state.had_current then
    local job = lanes.job(token, sub.generation, state.number)
    if redis.call('SADD', KEYS[4], job) == 0 then return end
    if promoted or sub.timeout == 0 then
      lanes.instant(job)
    else
      lanes.schedule(job, now + sub.timeout)
    end
  elseif promoted then
    local job = lanes.job(token, sub.generation, state.number)
    if redis.call('ZREM', KEYS[5], job) == 1 then lanes.instant(job) end
  end
end

-- Decides what becomes of a job that is in no state any more: its lane is looked at again, because work that came
-- while the job was held has not made another.
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

-- Whether the worker holds the job and the batch is still the one in flight. A worker that was scrubbed holds
-- nothing; after a lost reply the job may already be held for the lane's next batch.
function lanes.holds(worker, job, token, name, bid)
  return redis.call('LINDEX', lanes.pending_key(worker), 0) == job
    and redis.call('LINDEX', ready_key(token, name), 0) == bid
end

-- Lets go of a job. Its LPOP is allowed at the memory limit and so makes everything after it allowed.
function lanes.let_go(worker)
  redis.call('LPOP', lanes.pending_key(worker))
  redis.call('SREM', KEYS[7], worker)
  redis.call('HDEL', KEYS[8], worker)
end

-- Health of a subscriber after an attempt, 0...100.
function lanes.health(token, delta, now)
  local key = base .. 'subscriber:' .. token
  local points = tonumber(redis.call('HGET', key, 'health_points') or 100) + delta
  if points > 100 then points = 100 end
  if points < 0 then points = 0 end
  redis.call('HSET', key, 'health_points', text(points), 'last_attempted_at', text(now))
  return points
end

-- Makes batch ids of twenty characters: the caller's sixteen random ones (Redis' own random numbers are the same in
-- every script) and a count.
function lanes.bids(seed)
  local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
  local count = 0
  return function()
    local rest, out = count, ''
    for _ = 1, 4 do
      local digit = rest % 64
      out = string.sub(digits, digit + 1, digit + 1) .. out
      rest = math.floor(rest / 64)
    end
    count = count + 1
    return seed .. out
  end
end
