
-- The lanes: shared code of every script that appends to batches or changes jobs. It is appended to those scripts at
-- compile time, which define `main(lanes)` above. Their first nine KEYS are the ones of this file, in this order:
--   1 zset  bus:batches:index          batch id -> created, unix ms
--   2 hash  bus:batches:gauges:event   token -> events in batches of its subscription
--   3 hash  bus:batches:gauges:batch   token -> batches of its subscription
--   4 set   bus:jobs:index:main        every job, whatever its state
--   5 zset  bus:jobs:scheduled:main    job -> due, unix ms
--   6 list  bus:jobs:instant:main      jobs that workers can take
--   7 set   bus:jobs:pending:index:main workers that hold a job
--   8 hash  bus:workers                worker -> last heartbeat, unix ms
--   9 hash  bus:counters               telemetry
-- Keys that only the script can know (of a lane, its current batch, a segment of the log) are built from the first
-- one, so they have its hash tag and are in its shard.
--
-- A lane has exactly one job while it has a batch, ready or current: the batch in flight stays the head of the ready list until
-- it is settled. So the reads of `plan` show whether a job may have to be created. A lane whose batches were dropped may still
-- have a job that can be taken; its worker removes it.

local lanes = {}
local base = string.sub(KEYS[1], 1, -1 - #'batches:index')
lanes.base = base
-- The key prefix of individual objects.
lanes.objects = string.sub(base, 1, -1 - #'bus:') .. 'object:'

-- Maximum number of gaps that wait in one lane. Further ones are merged into the last.
local MAX_GAPS = 64

local wake

function lanes.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lua's own conversion writes 1.7e+15, but ids and times must keep every digit.
local function text(number)
  return string.format('%.0f', number)
end
lanes.text = text

-- Raises an error unless each key is absent or of the type. Redis does not undo a script that fails halfway, so types
-- are checked before the first write.
function lanes.expect(kind, ...)
  for n = 1, select('#', ...) do
    local key = select(n, ...)
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
local function behind_key(token) return base .. 'jobs:behind:' .. token end
lanes.batch_key, lanes.current_key, lanes.ready_key = batch_key, current_key, ready_key
lanes.generations_key, lanes.gaps_key, lanes.waiting_key = generations_key, gaps_key, waiting_key
lanes.behind_key, lanes.slow_key = behind_key, base .. 'jobs:slow:main'

-- Makes a job ready. Workers sleep while the list is empty, so the first job wakes them.
function lanes.instant(job)
  if redis.call('RPUSH', KEYS[6], job) == 1 then wake = 'now' end
end

function lanes.wake_all() wake = 'now' end

-- Makes a job wait until `due`. Workers sleep until the earliest due time. An earlier one is published to them: the
-- earliest of the call, in whatever order its jobs are scheduled.
function lanes.schedule(job, due)
  redis.call('ZADD', KEYS[5], text(due), job)
  local is_earlier = wake ~= 'now' and (not wake or due < tonumber(wake))
  if is_earlier and redis.call('ZRANK', KEYS[5], job) == 0 then wake = text(due) end
end

-- Wakes sleeping workers, once per call. It is called after `main`, whichever way `main` returned.
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

-- Whether the subscription of a generation has ended, so that its lanes are being removed. What they contain is neither
-- delivered nor settled nor inherited: the client may have another subscription by now, and nothing of the earlier one is for
-- it. Scripts ask after their first write as well, so it raises no error.
function lanes.has_ended(token, generation)
  local upto = redis.pcall('HGET', base .. 'purge', token)
  return type(upto) == 'string' and (tonumber(upto) or 0) >= tonumber(generation)
end

-- The gap that spans two gaps, with the reason of the older one.
local function merge(older, newer)
  local f1, l1, c1, reason = string.match(older, '^(%d+) (%d+) (%d+) (.*)$')
  local f2, l2, c2 = string.match(newer, '^(%d+) (%d+) (%d+) ')
  if tonumber(f2) < tonumber(f1) then f1 = f2 end
  if tonumber(l2) > tonumber(l1) then l1 = l2 end
  return f1 .. ' ' .. l1 .. ' ' .. text(c1 + c2) .. ' ' .. reason
end

-- Adds a gap to a lane.
local function add_gap(token, name, entry)
  local key = gaps_key(token, name)
  if redis.call('RPUSH', key, entry) > MAX_GAPS then
    local newer, older = redis.call('RPOP', key), redis.call('RPOP', key)
    redis.call('RPUSH', key, merge(older, newer))
  end
end

-- Records that a range of a lane's events may not have been delivered.
function lanes.gap(token, name, first, last, count, reason)
  add_gap(token, name, first .. ' ' .. last .. ' ' .. text(count) .. ' ' .. reason)
end

-- Adds the gaps of some lanes to each lane of a generation. If a lane has no space for all of them, it gets one that spans
-- them: with 64 lanes of 64 gaps each, the lanes of the next generation would otherwise be written 262,144 times.
local function inherit(token, heirs, gaps)
  for i = #gaps, MAX_GAPS + 1, -1 do gaps[i - 1], gaps[i] = merge(gaps[i - 1], gaps[i]), nil end
  local whole = gaps[1]
  for i = 2, #gaps do whole = merge(whole, gaps[i]) end
  for number = 0, heirs.lanes - 1 do
    local name = heirs.name .. '.' .. number
    if redis.call('LLEN', gaps_key(token, name)) + #gaps <= MAX_GAPS then
      lists.call('RPUSH', gaps_key(token, name), gaps)
    else
      add_gap(token, name, whole)
    end
  end
end

-- Removes a generation without batches if there is a newer one. If that is of the same subscription, its lanes report the gaps,
-- each of them all, because the new lanes of the objects are not known here. Jobs that waited for it become ready.
local function retire(token, generations, at)
  local old, next_one = generations[at], generations[at + 1]
  local gaps = {}
  for number = 0, old.lanes - 1 do
    local key = gaps_key(token, old.name .. '.' .. number)
    for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do gaps[#gaps + 1] = entry end
    redis.call('DEL', key)
  end
  if #gaps > 0 and not lanes.has_ended(token, old.name) then inherit(token, next_one, gaps) end
  redis.call('HDEL', generations_key(token), old.name, old.name .. ':lanes')
  for _, job in ipairs(redis.call('SMEMBERS', waiting_key(token))) do lanes.instant(job) end
  redis.call('DEL', waiting_key(token))
end

-- Starts a generation: lanes of the one before no longer wait until their batches are full. When that one began, the same
-- happened to the earlier ones, of which only the latest can be without batches.
local function begin(sub)
  redis.call('HSET', generations_key(sub.token), sub.generation, 0, sub.generation .. ':lanes', sub.concurrency)
  local generations = lanes.generations(sub.token)
  local at = #generations
  while at > 0 and generations[at].name ~= sub.generation do at = at - 1 end
  local old = generations[at - 1]
  if not old then return end
  if old.batches == 0 then return retire(sub.token, generations, at - 1) end
  for number = 0, old.lanes - 1 do
    local job = lanes.job(sub.token, old.name, number)
    -- A scheduled lane with a ready batch pauses after a failure. That pause is not shortened.
    if redis.call('EXISTS', ready_key(sub.token, old.name .. '.' .. number)) == 0
      and redis.call('ZREM', KEYS[5], job) == 1 then
      lanes.instant(job)
    end
  end
end

local function add_to_gauge(key, field, delta)
  if redis.call('HINCRBY', key, field, text(delta)) <= 0 then redis.call('HDEL', key, field) end
end

-- Changes the gauges of a token (its events and batches), and the number of batches of a generation. What is removed of a
-- subscription that ended is not in the gauges: they were removed when it ended.
function lanes.count(token, generation, events, batches)
  if events > 0 or batches > 0 or not lanes.has_ended(token, generation) then
    if events ~= 0 then add_to_gauge(KEYS[2], token, events) end
    if batches ~= 0 then add_to_gauge(KEYS[3], token, batches) end
  end
  if batches == 0 then return end
  local left = redis.call('HINCRBY', generations_key(token), generation, batches)
  if left <= 0 and batches < 0 then
    local generations = lanes.generations(token)
    for at = 1, #generations - 1 do
      if generations[at].name == generation then return retire(token, generations, at) end
    end
  end
end

-- Reads the state of some lanes of a subscriber, for `append`. `sub` has token, generation, concurrency, and the limits
-- of a batch: max (events), timeout (ms), bytes. `buckets` has the events for each lane, if they are known already.
-- Returns a state for each number of `numbers`.
function lanes.plan(sub, numbers, buckets)
  local fields = {}
  for i = 1, #numbers do
    local name = sub.generation .. '.' .. numbers[i]
    fields[2 * i - 1] = name
    fields[2 * i] = name .. ':bytes'
  end
  local current = lists.read('HMGET', current_key(sub.token), fields)
  sub.begun = redis.call('HEXISTS', generations_key(sub.token), sub.generation .. ':lanes') == 1
  local states = {}
  for i = 1, #numbers do
    local name = fields[2 * i - 1]
    -- Fields that are filled in later are created here, because a table that grows is slower.
    local state = {
      sub = sub, number = numbers[i], name = name, ready = 0, bid = false, count = 0, bytes = 0, had_current = false,
    }
    local bid, bucket, fits = current[2 * i - 1], buckets and buckets[numbers[i]], false
    if bid then
      state.count = redis.call('LLEN', batch_key(bid)) - 3
      state.bytes = tonumber(current[2 * i] or 0)
      state.bid = bid
      state.had_current = true
      fits = bucket and state.count + #bucket.items < sub.max and state.bytes + bucket.bytes <= sub.bytes
    end
    -- If the current batch of a lane does not become full, its job stays unchanged, and `wake_lane` has nothing to do.
    if not fits then state.ready = redis.call('LLEN', ready_key(sub.token, name)) end
    states[i] = state
  end
  return states
end

-- Writes the common state of a subscriber's lanes, once after appending to some of them: their current batches, and the
-- gauges.
function lanes.appended(sub)
  local current, ended = sub.current, sub.ended
  if current then lists.call('HSET', current_key(sub.token), current) end
  if ended then lists.call('HDEL', current_key(sub.token), ended) end
  if sub.events then lanes.count(sub.token, sub.generation, sub.events, sub.batches) end
end

-- Adds the items from index `at` on to a lane's current batch, or to a new one, until the batch is full. Returns the
-- index of the next item, and whether the batch is new.
local function fill(state, bucket, at, now, new_bid)
  local items, sizes = bucket.items, bucket.sizes
  local sub, is_new, total = state.sub, not state.bid, #items
  local created = is_new and text(now)
  if is_new then
    state.bid, state.count, state.bytes = new_bid(), 0, 0
    redis.call('ZADD', KEYS[1], created, state.bid)
  end
  if at == 1 and state.count + total <= sub.max and state.bytes + bucket.bytes <= sub.bytes then
    -- Usually all of them fit. Then they need no separate list, which would have to be created for each subscriber.
    local key = batch_key(state.bid)
    if is_new then redis.call('RPUSH', key, sub.token, created, '0', items[1]) end
    lists.call('RPUSH', key, items, is_new and 2 or 1)
    state.count, state.bytes = state.count + total, state.bytes + bucket.bytes
    return total + 1, is_new
  end
  local args, n = {}, 0
  if is_new then args, n = { sub.token, created, '0' }, 3 end
  while at <= total and state.count < sub.max
    and (state.count == 0 or state.bytes + sizes[at] <= sub.bytes) do
    n = n + 1
    args[n] = items[at]
    state.count = state.count + 1
    state.bytes = state.bytes + sizes[at]
    at = at + 1
  end
  lists.call('RPUSH', batch_key(state.bid), args)
  return at, is_new
end

-- Creates the job of a lane that had no batch, or makes it ready if a batch is ready (`promoted`).
local function wake_lane(state, promoted, now)
  -- The lane has a batch in flight, is ready, or pauses: its job will find the appended events.
  if state.ready > 0 then return end
  local sub = state.sub
  if not state.had_current then
    local job = lanes.job(sub.token, sub.generation, state.number)
    if redis.call('SADD', KEYS[4], job) == 0 then return end
    if promoted or sub.timeout == 0 then
      lanes.instant(job)
    else
      lanes.schedule(job, now + sub.timeout)
    end
  elseif promoted then
    local job = lanes.job(sub.token, sub.generation, state.number)
    if redis.call('ZREM', KEYS[5], job) == 1 then lanes.instant(job) end
  end
end

-- Appends the items of a bucket to a lane, one batch after the other, and creates or wakes its job. A bucket has
-- `items`, the bytes of their bodies as `sizes`, and the sum of these as `bytes`. `new_bid` creates batch ids. The
-- caller must call `appended` at the end.
function lanes.append(state, bucket, now, new_bid)
  local sub, token = state.sub, state.sub.token
  if not sub.begun then
    begin(sub)
    sub.begun = true
  end
  local at, total, batches, promoted = 1, #bucket.items, 0, false
  while at <= total do
    local is_new
    at, is_new = fill(state, bucket, at, now, new_bid)
    if is_new then batches = batches + 1 end
    if at <= total or state.count >= sub.max then
      redis.call('RPUSH', ready_key(token, state.name), state.bid)
      state.bid = false
      promoted = true
    end
  end
  if not sub.current then sub.current, sub.ended = {}, {} end
  if state.bid then
    local current, n = sub.current, #sub.current
    current[n + 1], current[n + 2] = state.name, state.bid
    current[n + 3], current[n + 4] = state.name .. ':bytes', text(state.bytes)
  elseif state.had_current then
    local ended, n = sub.ended, #sub.ended
    ended[n + 1], ended[n + 2] = state.name, state.name .. ':bytes'
  end
  sub.events = (sub.events or 0) + total
  sub.batches = (sub.batches or 0) + batches
  wake_lane(state, promoted, now)
end

-- Creates batch ids of twenty characters: the caller's sixteen random ones (Redis's own random numbers are the same in
-- every script) and a counter.
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
