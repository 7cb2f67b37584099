-- slices: shared code of every script that accesses queues. It is appended to those scripts at compile time, which
-- define `main(slices)` above.
--
-- A queue is opened by its ring's key. Keys that only the script can know (which tenant, which segment of the
-- log) are built from declared ones, so they carry the same hash tag and live in the same shard.
--
-- A slice is one tenant's part of a queue. It exists while it has messages: waiting in its list, delayed, or in
-- flight. It is in the ring while it can be pulled from: its weight is above 0, messages wait, fewer are in flight than
-- its limit, and it has not used up its rate. The ring is a sorted set, so no slice is in it twice, and removing one
-- takes no search.
--
-- The ranking orders slices by depth: how many of their messages wait or are delayed. A queue that is full finds in it who
-- has most. It has no slices with fewer than two messages, and it is corrected when the depth has changed by more than an
-- eighth, so that it costs little: quiet tenants never write to it, and noisy ones seldom do.
--
-- A slice's rules are the text `limit:rate`: its own limit of messages in flight and its own messages per 1,000 seconds,
-- both without a digit if there is none. Most slices have no rules, and cost nothing for them.

local slices = {}

-- Ten seconds of ids: the span of one segment of the log.
local SEGMENT = 64000000
local EPOCH = 1704067200000
-- Used as the segment of a message that has never waited yet, whose body is stored with its queue. Otherwise the log
-- would have to be kept for as long as the message is delayed.
local LATER = '0'
-- Maximum number of slices whose dropped messages are recorded individually. Those of further slices are recorded
-- together.
local MAX_GAPS = 10000
-- One message, in the unit of rates.
local MESSAGE = 1000000
-- Slices below this depth are not in the ranking.
local MIN_RANKED = 2
-- A depth is ranked again when it has changed by more than this part of what the ranking has.
local RANK_TOLERANCE = 1 / 8
-- Number of slices of the ranking, and of delayed messages, among which a full queue searches for messages to drop.
local MAX_VICTIMS, MAX_SAMPLED = 8, 256
-- A call drops this number of messages of a full queue for each that it adds, and some more. So a queue whose bounds were
-- lowered shrinks to them without a long call.
local DROPS_PER_MESSAGE, MORE_DROPS = 2, 100
-- Maximum number of returned items at the head of a slice among which a call inserts those that it returns.
local MAX_PRECEDING = 1000
-- How many of them are read at a time.
local PRECEDING_PART = 50

-- Lua's own conversion writes 1.7e+15, but ids and times must keep every digit.
local function text(number)
  return string.format('%.0f', number)
end
slices.text = text

function slices.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Raises an error unless each key is absent or of the type. Redis does not undo a script that fails halfway, so types
-- are checked before the first write.
function slices.expect(kind, ...)
  for n = 1, select('#', ...) do
    local key = select(n, ...)
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind })
    end
  end
end

-- The segment that contains an id. Most ids of a call are in the same one.
local known_number, known_segment
local function segment_of(id)
  local number = math.floor(id / SEGMENT)
  if number ~= known_number then known_number, known_segment = number, text(number) end
  return known_segment
end

-- An item of a queue: `id`, `id@segment` when the body was stored again (redriven), `#attempts` when it was delivered
-- before. Returns the id and the segment as text, and the attempts as a number.
function slices.item(item)
  local number = tonumber(item)
  if number then return item, segment_of(number), 0 end
  local id, segment, attempts = string.match(item, '^(%d+)@?(%d*)#?(%d*)$')
  if segment == '' then segment = segment_of(tonumber(id)) end
  return id, segment, tonumber(attempts) or 0
end

-- The item with a different number of attempts.
function slices.tried(item, attempts)
  local place = string.match(item, '^[%d@]+')
  return attempts > 0 and place .. '#' .. text(attempts) or place
end

-- The current segment, for bodies that are stored again.
function slices.segment(now)
  return text(math.floor((now - EPOCH) * 6400 / SEGMENT))
end

-- When the message was accepted, or stored again if that was later: unix ms. The start of the segment in the second case.
function slices.since(item)
  local number = tonumber(item)
  if number then return EPOCH + math.floor(number / 6400) end
  local id, segment = string.match(item, '^(%d+)@?(%d*)')
  local since = EPOCH + math.floor(tonumber(id) / 6400)
  local again = EPOCH + (tonumber(segment) or 0) * 10000
  return again > since and again or since
end

-- Whether a message became available before `ms`. If its body was stored again, only the segment of that moment is known, so
-- its end is assumed: no message is too old before it has been available for the whole time.
function slices.available_before(item, ms)
  return slices.since(item) + (string.find(item, '@', 1, true) and 10000 or 0) < ms
end

-- A queue, by the key of its ring; `held` and `due` are keys that the queues of a shard share. `limit` is the maximum
-- number of messages in flight for a slice without its own limit, 0 for none.
function slices.open(held, due, ring, limit)
  local base = string.match(ring, '^(.*)|ring$')
  return {
    base = base, name = string.match(base, 'queue:([^:|]+)$'), limit = limit,
    held = held, due = due, ring = ring, prefix = string.match(held, '^(.*)|held$'),
    leases = base .. '|leases', inflight = base .. '|inflight', delayed = base .. '|delayed',
    dead = base .. '|dead', count = base .. '|count', index = base .. '|facets', settings = base .. '|settings',
    later = base .. '|later', throttled = base .. '|throttled', rates = base .. '|rates', gaps = base .. '|gaps',
    depths = base .. '|depths',
    slices = {}, touched = {}, deltas = {}, segments = {}, entered = {},
  }
end

-- Opens a queue with its settings in the shard; nil if there are none because it was deleted. Settings that an older
-- version stored may lack those of the second line.
function slices.configured(held, due, ring)
  local queue = slices.open(held, due, ring, 0)
  local found = redis.call('HMGET', queue.settings, 'revision', 'lease_ms', 'in_flight_limit', 'max_attempts',
    'retention_ms', 'backoff_ms', 'max_backoff_ms')
  if not found[1] then return nil end
  queue.revision, queue.lease = tonumber(found[1]), tonumber(found[2])
  queue.limit, queue.max_attempts = tonumber(found[3]), tonumber(found[4])
  queue.retention = tonumber(found[5] or nil)
  queue.backoff, queue.max_backoff = tonumber(found[6] or 0), tonumber(found[7] or 0)
  slices.expect('zset', queue.leases, queue.index, queue.depths, due)
  slices.expect('hash', queue.count, held)
  return queue
end

-- Sets the bounds that a publish has to respect: numbers of messages of the queue and of a slice that wait or are delayed
-- (0 for none), and 1 to drop the oldest instead of rejecting new ones.
function slices.bound(queue, max, slice_max, drop)
  queue.bounded, queue.max, queue.slice_max, queue.drops = true, tonumber(max), tonumber(slice_max), drop == '1'
  local counts = redis.call('HMGET', queue.count, 'waiting', 'delayed')
  -- The size of the queue, and what the call adds to slices: waiting and delayed messages.
  queue.size = tonumber(counts[1] or 0) + tonumber(counts[2] or 0)
  queue.added, queue.plans, queue.fresh, queue.refused = 0, {}, 0, {}
end

-- The slice of a tenant, and how many messages of it wait and are delayed with what the call adds.
local function sizes_of(queue, tenant)
  local slice, plan = slices.load(queue, tenant), queue.plans[tenant]
  return slice.waiting + (plan and plan.waiting or 0), slice.delayed + (plan and plan.delayed or 0), slice
end

-- The slices at the top of the ranking with their ranked depths, the deepest first.
local function deepest(queue, count)
  return redis.call('ZRANGE', queue.depths, 0, count - 1, 'REV', 'WITHSCORES')
end

-- Whether a queue that rejects messages can accept `count` more of a tenant. A full queue still accepts those of a
-- tenant that has less than its share, up to twice the bound: otherwise one tenant could lock out all others.
local function has_space(queue, tenant, count)
  local waiting, delayed, slice = sizes_of(queue, tenant)
  local depth = waiting + delayed + count
  if queue.slice_max > 0 and depth > queue.slice_max then return false end
  if queue.max == 0 or queue.size + count <= queue.max then return true end
  if queue.size + count > 2 * queue.max then return false end
  local is_fresh = not slice.known and not queue.plans[tenant]
  local tenants = redis.call('ZCARD', queue.index) + queue.fresh + (is_fresh and 1 or 0)
  return depth <= math.max(1, queue.max / tenants)
end

-- Whether a queue that drops messages can accept `count` more of a tenant that are delayed. It drops waiting messages,
-- and delayed ones for another tenant's sake only. So a tenant whose own delayed messages fill the queue is rejected.
local function has_space_later(queue, tenant, count)
  local waiting, delayed = sizes_of(queue, tenant)
  if queue.slice_max > 0 and delayed + count > queue.slice_max then return false end
  if queue.max == 0 or queue.size + count <= queue.max or waiting > 0 then return true end
  local top = deepest(queue, 2)
  local largest = tonumber((top[1] == tenant and top[4] or top[2]) or 0)
  return delayed + count <= largest
end

-- Whether a bounded queue can accept `count` more messages of a tenant, which are delayed or not.
function slices.fits(queue, tenant, count, is_delayed)
  if not queue.bounded then return true end
  if not queue.drops then return has_space(queue, tenant, count) end
  return not is_delayed or has_space_later(queue, tenant, count)
end

-- Counts a message that a bounded queue will accept.
function slices.plan(queue, tenant, is_delayed)
  if not queue.bounded then return end
  local plan = queue.plans[tenant]
  if not plan then
    if not slices.load(queue, tenant).known then queue.fresh = queue.fresh + 1 end
    plan = { waiting = 0, delayed = 0 }
    queue.plans[tenant] = plan
  end
  local place = is_delayed and 'delayed' or 'waiting'
  plan[place] = plan[place] + 1
  queue.size, queue.added = queue.size + 1, queue.added + 1
end

-- Counts an event that a full queue does not get, for its gap.
function slices.refuse(queue, tenant, id)
  local refused = queue.refused[tenant]
  if refused then
    refused.last, refused.count = id, refused.count + 1
  else
    queue.refused[tenant] = { first = id, last = id, count = 1 }
  end
end

-- Whether a slice can be pulled from.
function slices.eligible(slice)
  return slice.weight > 0 and slice.waiting > 0 and not slice.throttled
    and (slice.limit == 0 or slice.flying < slice.limit)
end

-- Sets a slice's rules, and reads whether it has used up its rate.
function slices.rule(queue, slice, rules)
  slice.rules, slice.limit, slice.rate, slice.throttled = rules, queue.limit, false, false
  if rules == '' then return end
  local limit, rate = string.match(rules, '^(%d*):(%d*)$')
  if limit ~= '' then slice.limit = tonumber(limit) end
  if rate ~= '' then
    slice.rate = tonumber(rate)
    slice.throttled = redis.call('ZSCORE', queue.throttled, slice.tenant) and true or false
  end
end

-- The number of messages that the rate allows now, in millionths: a token bucket that holds one second of the rate, but
-- at least one message. It is stored separately, because the slice may be removed between two messages.
function slices.tokens(queue, slice, now)
  local full = math.max(MESSAGE, slice.rate * 1000)
  local saved = redis.call('HGET', queue.rates, slice.tenant)
  if not saved then return full end
  local tokens, at = string.match(saved, '^(%S+) (%d+)$')
  return math.min(full, tonumber(tokens) + math.max(0, now - tonumber(at)) * slice.rate)
end

-- Takes messages out of the token bucket.
function slices.spend(slice, messages)
  slice.tokens = slice.tokens - messages * MESSAGE
  slice.throttled = slice.tokens < MESSAGE
end

-- The number of whole messages that the rate allows.
function slices.allowed(slice)
  return math.floor(slice.tokens / MESSAGE)
end

-- Stores the rest of the token bucket. A slice that has used up its rate leaves the ring; a sweep puts it back at the
-- right time.
function slices.use_rate(queue, slice, now)
  redis.call('HSET', queue.rates, slice.tenant, text(slice.tokens) .. ' ' .. text(now))
  if not slice.throttled then return end
  local due = now + math.max(1, math.ceil((MESSAGE - slice.tokens) / slice.rate))
  redis.call('ZADD', queue.throttled, text(due), slice.tenant)
  slices.schedule(queue, due)
end

-- The fields whose stored values are remembered, so that only changed ones are written.
local CHANGES = { 'flying', 'delayed', 'used', 'weight', 'dwell', 'rules', 'rank' }
local function remember(slice)
  slice.old = {
    flying = slice.flying, delayed = slice.delayed, used = slice.used, weight = slice.weight, dwell = slice.dwell,
    rules = slice.rules, rank = slice.rank,
  }
end

-- Reads a slice. The reads fail if keys have the wrong type.
function slices.load(queue, tenant)
  local slice = queue.slices[tenant]
  if slice then return slice end
  local key, list = queue.base .. '|facet:' .. tenant, queue.base .. ':' .. tenant
  local found = redis.call('HMGET', key, 'weight', 'flying', 'delayed', 'used', 'dwell', 'rules', 'rank')
  -- Fields that are filled in later are created here, because a table that grows is slower. `taken` and `backlog` are
  -- for pulls.
  slice = {
    tenant = tenant, key = key, list = list, known = found[2] and true or false, weight = tonumber(found[1] or 1),
    flying = tonumber(found[2] or 0), delayed = tonumber(found[3] or 0), used = tonumber(found[4] or 0),
    dwell = tonumber(found[5] or nil), waiting = redis.call('LLEN', list), was_eligible = false, old = false,
    taken = false, backlog = false, rules = '', limit = queue.limit, rate = false, throttled = false,
    rank = tonumber(found[7] or 0),
  }
  if found[6] then slices.rule(queue, slice, found[6]) end
  remember(slice)
  slice.was_eligible = slice.known and slices.eligible(slice)
  queue.slices[tenant] = slice
  queue.touched[#queue.touched + 1] = slice
  return slice
end

-- Whether a slice's depth differs so much from the ranked one (0 if it is not in the ranking) that it is ranked again.
local function is_misranked(slice)
  local depth = slice.waiting + slice.delayed
  if depth < MIN_RANKED then return slice.rank > 0 end
  return math.abs(depth - slice.rank) > slice.rank * RANK_TOLERANCE
end

slices.is_misranked = is_misranked

local function rank(queue, slice)
  if not is_misranked(slice) then return end
  local depth = slice.waiting + slice.delayed
  if depth < MIN_RANKED then
    redis.call('ZREM', queue.depths, slice.tenant)
    slice.rank = 0
  else
    redis.call('ZADD', queue.depths, text(depth), slice.tenant)
    slice.rank = depth
  end
end

-- Writes a slice, or removes it if it has no messages.
function slices.write(queue, slice)
  rank(queue, slice)
  if slice.waiting == 0 and slice.delayed == 0 and slice.flying == 0 then
    redis.call('DEL', slice.key)
    redis.call('ZREM', queue.index, slice.tenant)
    slice.known = false
    return
  end
  if not slice.known then
    redis.call('HSET', slice.key, 'weight', text(slice.weight), 'flying', text(slice.flying),
      'delayed', text(slice.delayed), 'used', text(slice.used), 'dwell', slice.dwell and text(slice.dwell) or '')
    if slice.rules ~= '' then redis.call('HSET', slice.key, 'rules', slice.rules) end
    if slice.rank > 0 then redis.call('HSET', slice.key, 'rank', text(slice.rank)) end
    redis.call('ZADD', queue.index, 0, slice.tenant)
    slice.known = true
    remember(slice)
    return
  end
  local fields, n = {}, 0
  for i = 1, #CHANGES do
    local name = CHANGES[i]
    if slice[name] ~= slice.old[name] then
      fields[n + 1], fields[n + 2] = name, name == 'rules' and slice.rules or text(slice[name])
      n = n + 2
    end
  end
  lists.call('HSET', slice.key, fields)
  remember(slice)
end

-- Adds those slices to the tail of the ring that are not in it. Positions in the ring only rise, and the head has the
-- lowest. If the ring was empty, waiting consumers are woken. Returns how many slices were added.
function slices.enter(queue, tenants)
  local last = redis.call('ZRANGE', queue.ring, -1, -1, 'WITHSCORES')[2]
  local places, place = {}, tonumber(last or 0)
  for i = 1, #tenants do
    place = place + 1
    places[2 * i - 1], places[2 * i] = text(place), tenants[i]
  end
  if not last then queue.woken = true end
  local added = 0
  lists.each(places, function(...) added = added + redis.call('ZADD', queue.ring, 'NX', ...) end)
  return added
end

-- Records that a consumer waits for one slice, and has to be notified when it enters the ring, even if other slices are
-- in the ring. At the memory limit this fails, and the consumer waits until it asks again.
function slices.watch(queue, wait_ms)
  local key = queue.base .. '|watched'
  local noted = redis.pcall('SET', key, '1', 'NX', 'PX', wait_ms)
  if not noted then redis.call('PEXPIRE', key, wait_ms, 'GT') end
end

-- Adds a slice to the ring or removes it, if that has changed, and writes it. A slice enters at the tail with a full
-- turn. `unknown` means that the definition has changed, so it is unknown whether the slice is in the ring.
function slices.settle(queue, slice, unknown)
  local should = slices.eligible(slice)
  if should and (unknown or not slice.was_eligible) then
    if slices.enter(queue, { slice.tenant }) == 1 then
      slice.used = 0
      if queue.watched == nil then queue.watched = redis.call('EXISTS', queue.base .. '|watched') == 1 end
      if queue.watched then queue.entered[slice.tenant] = true end
    end
  elseif not should and (unknown or slice.was_eligible) then
    redis.call('ZREM', queue.ring, slice.tenant)
    slice.used = 0
  end
  slices.write(queue, slice)
  slice.was_eligible = should
end

-- Changes a counter of the queue; `finish` writes it.
function slices.add(queue, name, delta)
  queue.deltas[name] = (queue.deltas[name] or 0) + delta
end

-- Records that a message needs its body in the log (1), or no longer needs it (-1); `finish` writes it.
function slices.hold(queue, segment, delta)
  queue.segments[segment] = (queue.segments[segment] or 0) + delta
end

-- Changes the number of bytes that the fabric stores for a tenant (see publish_quota.lua of the bus). With
-- `segment`, the body is in that segment of the log.
function slices.charge(queue, tenant, bytes, segment)
  local base = string.sub(queue.prefix, 1, -1 - #'queue:') .. 'bus:'
  local key = base .. 'environments'
  if redis.call('HINCRBY', key, tenant, text(bytes)) <= 0 then
    redis.call('HDEL', key, tenant)
    redis.call('HDEL', key .. ':clients', tenant)
  end
  if segment then redis.call('HINCRBY', base .. 'log:' .. segment .. ':environments', tenant, text(bytes)) end
end

-- The body of a message: in its segment of the log, whose key begins with `log`, or with the queue.
function slices.body(queue, log, id, segment)
  return redis.call('HGET', segment == LATER and queue.later or log .. ':' .. segment, id)
end

-- Releases the body of a message that was delayed.
function slices.release(queue, id, segment, tenant)
  if segment ~= LATER then return slices.hold(queue, segment, -1) end
  slices.charge(queue, tenant, -redis.call('HSTRLEN', queue.later, id))
  redis.call('HDEL', queue.later, id)
end

-- Appends items to a slice. `weight` and `rules` are those of the definition, for a new slice.
function slices.push(queue, slice, items, weight, rules)
  if not slice.known then
    slice.weight = weight
    slices.rule(queue, slice, rules)
  end
  lists.call('RPUSH', slice.list, items)
  slice.waiting = slice.waiting + #items
  slices.add(queue, 'waiting', #items)
  -- Usually the eligibility of the slice does not change, and nothing else has to be written.
  if not slice.known or slices.eligible(slice) ~= slice.was_eligible then
    slices.settle(queue, slice)
  elseif is_misranked(slice) then
    slices.write(queue, slice)
  end
end

-- Stores a message that is delivered for the first time at `due` or later. The other arguments are those of `push`.
function slices.push_later(queue, slice, id, body, due, weight, rules)
  if not slice.known then
    slice.weight = weight
    slices.rule(queue, slice, rules)
  end
  redis.call('HSET', queue.later, id, body)
  redis.call('ZADD', queue.delayed, text(due), id .. '@' .. LATER .. ' ' .. slice.tenant)
  slice.delayed = slice.delayed + 1
  slices.add(queue, 'delayed', 1)
  slices.schedule(queue, due)
  slices.settle(queue, slice)
end

-- The pause before the next delivery of a message after `attempts` failed ones: ms, 0 without backoff.
function slices.backoff(queue, attempts)
  if queue.backoff == 0 then return 0 end
  return math.min(queue.backoff * 2 ^ math.min(attempts - 1, 40), queue.max_backoff)
end

-- Delays messages in flight. Each is { tenant, item }. `land` has already subtracted them from their slices.
function slices.delay(queue, messages, dues)
  for i, message in ipairs(messages) do
    redis.call('ZADD', queue.delayed, text(dues[i]), message.item .. ' ' .. message.tenant)
    local slice = slices.load(queue, message.tenant)
    slice.delayed = slice.delayed + 1
    slices.schedule(queue, dues[i])
  end
  slices.add(queue, 'delayed', #messages)
end

-- Records messages of a tenant that a full queue dropped or did not get: `gaps` has a field for each tenant with
-- the lowest and the highest id, the number of messages, and the time of the last drop.
local function note_gap(queue, tenant, lowest, highest, count, now)
  local gap = redis.call('HGET', queue.gaps, tenant)
  if not gap and redis.call('HLEN', queue.gaps) >= MAX_GAPS then
    tenant = ''
    gap = redis.call('HGET', queue.gaps, tenant)
  end
  local first, last, number = string.match(gap or '', '^(%d+) (%d+) (%d+) ')
  first, last, number = tonumber(first), tonumber(last), tonumber(number or 0)
  first, last = math.min(first or lowest, lowest), math.max(last or highest, highest)
  redis.call('HSET', queue.gaps, tenant, table.concat({ text(first), text(last), text(number + count), text(now) }, ' '))
  slices.add(queue, 'dropped', count)
end

-- Limits how many messages of each slice a full queue has to drop, so that the deepest ones become equally deep. Each victim
-- is { slice, depth, touched }; those that the call has added to are dropped from last, if they are as deep as others.
-- Sets `take`.
local function level(victims, over)
  table.sort(victims, function(a, b)
    if a.depth ~= b.depth then return a.depth > b.depth end
    if a.touched ~= b.touched then return b.touched end
    return a.slice.tenant < b.slice.tenant
  end)
  local depth, count = 0, 0
  for i = 1, #victims do
    depth, count = victims[i].depth, i
    local below = victims[i + 1] and victims[i + 1].depth or 0
    if (depth - below) * i >= over then break end
    over, depth = over - (depth - below) * i, below
  end
  local each = math.floor(over / math.max(count, 1))
  local more = over - each * count
  for i = 1, count do
    local take = victims[i].depth - depth + each + (i <= more and 1 or 0)
    victims[i].take = math.min(take, victims[i].depth)
  end
end

-- Slices among which a full queue searches for messages to drop, with the depths that they have after the call: those at
-- the top of the ranking, the one whose turn it is, and those that the call adds to.
local function find_victims(queue, taken)
  local victims, seen = {}, {}
  local function add(tenant)
    if not tenant or seen[tenant] then return end
    seen[tenant] = true
    local waiting, delayed, slice = sizes_of(queue, tenant)
    victims[#victims + 1] = {
      slice = slice, depth = waiting + delayed - (taken[tenant] or 0), touched = queue.plans[tenant] and true or false, take = 0,
    }
  end
  local top = deepest(queue, MAX_VICTIMS)
  for i = 1, #top, 2 do add(top[i]) end
  add(redis.call('ZRANGE', queue.ring, 0, 0)[1])
  for tenant in pairs(queue.plans) do add(tenant) end
  return victims
end

-- Delayed messages by tenant, from a sample: the tenant that has most of them is in it. Those that are due last are
-- first.
local function sample_delayed(queue)
  local found, by_env = redis.call('ZRANDMEMBER', queue.delayed, MAX_SAMPLED, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    local item, tenant = string.match(found[i], '^(%S+) (.*)$')
    local list = by_env[tenant] or {}
    by_env[tenant] = list
    list[#list + 1] = { member = found[i], item = item, due = tonumber(found[i + 1]) }
  end
  for _, list in pairs(by_env) do
    table.sort(list, function(a, b)
      if a.due ~= b.due then return a.due > b.due end
      return a.member > b.member
    end)
  end
  return by_env
end

-- Plans what a queue drops that exceeds its bounds, before the first write: first the oldest messages of each slice that
-- has too many, then those of the deepest slices. `drops` has for each slice how many waiting messages, and which delayed
-- ones, if too few wait.
function slices.plan_drops(queue)
  if not queue.bounded or not queue.drops or queue.added == 0 then return end
  local most, taken, drops, size = DROPS_PER_MESSAGE * queue.added + MORE_DROPS, {}, {}, queue.size
  for tenant in pairs(queue.plans) do
    local waiting, delayed = sizes_of(queue, tenant)
    local over = queue.slice_max > 0 and math.min(waiting + delayed - queue.slice_max, waiting, most) or 0
    if over > 0 then taken[tenant], size = over, size - over end
  end
  local over = queue.max > 0 and math.min(size - queue.max, most) or 0
  if over > 0 then
    local victims = find_victims(queue, taken)
    level(victims, over)
    for _, victim in ipairs(victims) do
      if victim.take > 0 then taken[victim.slice.tenant] = (taken[victim.slice.tenant] or 0) + victim.take end
    end
  end
  local sampled
  for tenant, count in pairs(taken) do
    local waiting, _, slice = sizes_of(queue, tenant)
    local drop = { slice = slice, waiting = math.min(count, waiting), delayed = {} }
    if count > waiting then
      sampled = sampled or sample_delayed(queue)
      for i = 1, math.min(count - waiting, #(sampled[tenant] or {})) do drop.delayed[i] = sampled[tenant][i] end
    end
    drops[#drops + 1] = drop
  end
  queue.dropping = drops
end

-- Drops waiting and delayed messages of a slice.
local function drop_from(queue, drop, now)
  local slice = drop.slice
  local items = drop.waiting > 0 and redis.call('LPOP', slice.list, drop.waiting) or {}
  local lowest, highest
  local function drop_one(item)
    local id, segment = slices.item(item)
    slices.release(queue, id, segment, slice.tenant)
    id = tonumber(id)
    lowest, highest = math.min(lowest or id, id), math.max(highest or id, id)
  end
  for i = 1, #items do drop_one(items[i]) end
  for i = 1, #drop.delayed do
    redis.call('ZREM', queue.delayed, drop.delayed[i].member)
    drop_one(drop.delayed[i].item)
  end
  if not lowest then return end
  slice.waiting, slice.delayed = slice.waiting - #items, slice.delayed - #drop.delayed
  slices.add(queue, 'waiting', -#items)
  slices.add(queue, 'delayed', -#drop.delayed)
  note_gap(queue, slice.tenant, lowest, highest, #items + #drop.delayed, now)
  slices.settle(queue, slice)
end

-- Drops what exceeds the bounds of a queue, and records what it did not get.
function slices.keep_bounds(queue, now)
  if not queue.bounded then return end
  for _, drop in ipairs(queue.dropping or {}) do drop_from(queue, drop, now) end
  for tenant, refused in pairs(queue.refused) do
    note_gap(queue, tenant, tonumber(refused.first), tonumber(refused.last), refused.count, now)
  end
end

-- Takes from the head of a slice the returned items that precede this id: an earlier call returned them. Items that were
-- never delivered stay, whatever their ids. All slices of a call together have MAX_PRECEDING items. Returns an array of
-- { id, item }.
local function take_preceding(queue, list, id)
  local taken, left = {}, queue.preceding or MAX_PRECEDING
  -- The first item usually shows that there is none.
  local part, is_head = 1, true
  while is_head and left > 0 do
    part = math.min(part, left)
    local items = redis.call('LRANGE', list, #taken, #taken + part - 1)
    left = left - part
    is_head, part = #items == part, PRECEDING_PART
    for _, item in ipairs(items) do
      local before, _, attempts = slices.item(item)
      before = tonumber(before)
      if attempts == 0 or before > id then
        is_head = false
        break
      end
      taken[#taken + 1] = { id = before, item = item }
    end
  end
  queue.preceding = left
  if #taken > 0 then redis.call('LTRIM', list, #taken, -1) end
  return taken
end

-- Returns messages to the heads of their slices, in the order of their ids, even if they are returned in several calls. Each
-- is { tenant, item, id }.
function slices.give_back(queue, messages)
  for _, message in ipairs(messages) do message.number = tonumber(message.id) end
  table.sort(messages, function(a, b) return a.number > b.number end)
  local returned, order = {}, {}
  for _, message in ipairs(messages) do
    local slice = slices.load(queue, message.tenant)
    local back = returned[slice]
    if not back then
      back = { slice = slice, before = take_preceding(queue, slice.list, message.number), items = {} }
      returned[slice], order[#order + 1] = back, back
    end
    -- Both go to the head of the list with the highest id first.
    local before, items = back.before, back.items
    while before[#before] and before[#before].id > message.number do items[#items + 1] = table.remove(before).item end
    items[#items + 1] = message.item
    slice.waiting = slice.waiting + 1
  end
  for _, back in ipairs(order) do
    local before, items = back.before, back.items
    for i = #before, 1, -1 do items[#items + 1] = before[i].item end
    lists.call('LPUSH', back.slice.list, items)
  end
  slices.add(queue, 'waiting', #messages)
end

-- Turns messages into dead letters with their bodies, so that the log need not keep them. Each message is { id,
-- segment, attempts, tenant, body }. Above `keep` dead letters the oldest are dropped, at most twice as many as are added, and
-- some more: so a list whose limit was lowered shrinks to it without a long call. A message whose body was lost is only dropped.
function slices.bury(queue, messages, reason, now, keep)
  for _, message in ipairs(messages) do
    slices.hold(queue, message.segment, -1)
    slices.add(queue, message.body and 'died' or 'lost', 1)
    if message.body then
      redis.call('RPUSH', queue.dead, cmsgpack.pack({
        text(now), text(message.attempts), reason, message.tenant, message.id, message.body,
      }))
    end
  end
  local over = math.min(redis.call('LLEN', queue.dead) - keep, DROPS_PER_MESSAGE * #messages + MORE_DROPS)
  if over > 0 then
    redis.call('LTRIM', queue.dead, over, -1)
    slices.add(queue, 'dropped', over)
  end
end

-- The message in flight with this id, from its stored value: `nonce attempts item tenant`. nil without a value. The
-- second value is its proof: the nonce and the attempt.
function slices.flying(id, value)
  local proof, attempts, item, tenant = string.match(value or '', '^(%S+ (%d+)) (%S+) (.*)$')
  if not proof then return nil end
  local _, segment = slices.item(item)
  return { id = id, attempts = tonumber(attempts), item = item, tenant = tenant, segment = segment }, proof
end

-- Reads the messages in flight under these ids and proofs (an array id, proof, id, proof …). Returns an array with
-- { id, attempts, item, tenant, segment } or false for each; of a repeated receipt, only the first gets the message.
function slices.held_by(queue, receipts)
  local ids, seen, found = {}, {}, {}
  for i = 1, #receipts, 2 do ids[#ids + 1] = receipts[i] end
  local values = lists.read('HMGET', queue.inflight, ids)
  for i = 1, #ids do
    local message, proof = slices.flying(ids[i], values[i])
    found[i] = message and not seen[ids[i]] and proof == receipts[2 * i] and message or false
    if found[i] then seen[ids[i]] = true end
  end
  return found
end

-- Ends the leases of messages. Redis accepts the ZREM at its memory limit, and then everything after it. Loads their
-- slices; the caller must call `settle` for each (`settle_all`).
function slices.land(queue, messages)
  local ids = {}
  for i, message in ipairs(messages) do
    ids[i] = message.id
    local slice = slices.load(queue, message.tenant)
    slice.flying = slice.flying - 1
  end
  if #ids == 0 then return end
  lists.call('ZREM', queue.leases, ids)
  lists.call('HDEL', queue.inflight, ids)
  slices.add(queue, 'inflight', -#ids)
end

-- Settles every loaded slice, in the order of loading.
function slices.settle_all(queue, unknown)
  for _, slice in ipairs(queue.touched) do slices.settle(queue, slice, unknown) end
end

-- Records when a lease ends or a message is due. Sweepers sleep until the earliest such time; if it becomes earlier, it
-- is published to them.
function slices.schedule(queue, due)
  if redis.call('ZADD', queue.due, 'LT', 'CH', text(due), queue.name) == 1
    and redis.call('ZRANK', queue.due, queue.name) == 0 then
    queue.earlier = due
  end
end

-- The earliest time at which a lease ends, a message is due, or the rate of a slice allows messages again; nil if there
-- is none.
function slices.next_due(queue)
  local first
  for _, key in ipairs({ queue.leases, queue.delayed, queue.throttled }) do
    local due = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if due and not (first and first <= due) then first = due end
  end
  return first
end

-- Must be called last: it writes the counters and wakes sleepers, once per call.
function slices.finish(queue)
  for name, delta in pairs(queue.deltas) do
    if delta ~= 0 then redis.call('HINCRBY', queue.count, name, text(delta)) end
  end
  for segment, delta in pairs(queue.segments) do
    if delta ~= 0 and redis.call('HINCRBY', queue.held, segment, text(delta)) <= 0 then
      redis.call('HDEL', queue.held, segment)
    end
  end
  if queue.woken then redis.call('PUBLISH', queue.prefix .. 'wake', 'pull ' .. queue.name) end
  for tenant in pairs(queue.entered) do
    redis.call('PUBLISH', queue.prefix .. 'wake', 'only ' .. queue.name .. '|' .. tenant)
  end
  if queue.earlier then redis.call('PUBLISH', queue.prefix .. 'wake', 'due ' .. text(queue.earlier)) end
end
