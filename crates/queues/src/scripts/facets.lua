-- facets: shared code of every script that accesses queues. It is appended to those scripts at compile time, which
-- define `main(facets)` above.
--
-- A queue is opened by its ring's key. Keys that only the script can know (which environment, which segment of the
-- log) are built from declared ones, so they carry the same hash tag and live in the same shard.
--
-- A facet is one environment's part of a queue. It exists while it has messages: waiting in its list, delayed, or in
-- flight. It is in the ring while it can be pulled from: its weight is above 0, messages wait, fewer are in flight than
-- its limit, and it has not used up its rate. The ring is a sorted set, so no facet is in it twice, and removing one
-- takes no search.
--
-- The ranking orders facets by depth: how many of their messages wait or are delayed. A queue that is full finds in it who
-- has most. It has no facets with fewer than two messages, and it is corrected when the depth has changed by more than an
-- eighth, so that it costs little: quiet tenants never write to it, and noisy ones seldom do.
--
-- A facet's rules are the text `limit:rate`: its own limit of messages in flight and its own messages per 1,000 seconds,
-- both without a digit if there is none. Most facets have no rules, and cost nothing for them.

local facets = {}

-- Ten seconds of ids: the span of one segment of the log.
local SEGMENT = 64000000
local EPOCH = 1704067200000
-- Used as the segment of a message that has never waited yet, whose body is stored with its queue. Otherwise the log
-- would have to be kept for as long as the message is delayed.
local LATER = '0'
-- Maximum number of facets whose dropped messages are recorded individually. Those of further facets are recorded
-- together.
local MAX_GAPS = 10000
-- One message, in the unit of rates.
local MESSAGE = 1000000
-- Facets below this depth are not in the ranking.
local MIN_RANKED = 2
-- A depth is ranked again when it has changed by more than this part of what the ranking has.
local RANK_TOLERANCE = 1 / 8
-- Number of facets of the ranking, and of delayed messages, among which a full queue searches for messages to drop.
local MAX_VICTIMS, MAX_SAMPLED = 8, 256
-- A call drops this number of messages of a full queue for each that it adds, and some more. So a queue whose bounds were
-- lowered shrinks to them without a long call.
local DROPS_PER_MESSAGE, MORE_DROPS = 2, 100
-- Maximum number of returned items at the head of a facet among which a call inserts those that it returns.
local MAX_PRECEDING = 1000

-- Lua's own conversion writes 1.7e+15, but ids and times must keep every digit.
local function text(number)
  return string.format('%.0f', number)
end
facets.text = text

function facets.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Raises an error unless each key is absent or of the type. Redis does not undo a script that fails halfway, so types
-- are checked before the first write.
function facets.expect(kind, ...)
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
function facets.item(item)
  local number = tonumber(item)
  if number then return item, segment_of(number), 0 end
  local id, segment, attempts = string.match(item, '^(%d+)@?(%d*)#?(%d*)$')
  if segment == '' then segment = segment_of(tonumber(id)) end
  return id, segment, tonumber(attempts) or 0
end

-- The item with a different number of attempts.
function facets.tried(item, attempts)
  local place = string.match(item, '^[%d@]+')
  return attempts > 0 and place .. '#' .. text(attempts) or place
end

-- The current segment, for bodies that are stored again.
function facets.segment(now)
  return text(math.floor((now - EPOCH) * 6400 / SEGMENT))
end

-- When the message was accepted, or stored again if that was later: unix ms. The start of the segment in the second case.
function facets.since(item)
  local number = tonumber(item)
  if number then return EPOCH + math.floor(number / 6400) end
  local id, segment = string.match(item, '^(%d+)@?(%d*)')
  local since = EPOCH + math.floor(tonumber(id) / 6400)
  local again = EPOCH + (tonumber(segment) or 0) * 10000
  return again > since and again or since
end

-- Whether a message became available before `ms`. If its body was stored again, only the segment of that moment is known, so
-- its end is assumed: no message is too old before it has been available for the whole time.
function facets.available_before(item, ms)
  return facets.since(item) + (string.find(item, '@', 1, true) and 10000 or 0) < ms
end

-- A queue, by the key of its ring; `held` and `due` are keys that the queues of a shard share. `limit` is the maximum
-- number of messages in flight for a facet without its own limit, 0 for none.
function facets.open(held, due, ring, limit)
  local base = string.match(ring, '^(.*)|ring$')
  return {
    base = base, name = string.match(base, 'queue:([^:|]+)$'), limit = limit,
    held = held, due = due, ring = ring, prefix = string.match(held, '^(.*)|held$'),
    leases = base .. '|leases', inflight = base .. '|inflight', delayed = base .. '|delayed',
    dead = base .. '|dead', count = base .. '|count', index = base .. '|facets', settings = base .. '|settings',
    later = base .. '|later', throttled = base .. '|throttled', rates = base .. '|rates', gaps = base .. '|gaps',
    depths = base .. '|depths',
    facets = {}, touched = {}, deltas = {}, segments = {}, entered = {},
  }
end

-- Opens a queue with its settings in the shard; nil if there are none because it was deleted. Settings that an older
-- version stored may lack those of the second line.
function facets.configured(held, due, ring)
  local queue = facets.open(held, due, ring, 0)
  local found = redis.call('HMGET', queue.settings, 'revision', 'lease_ms', 'in_flight_limit', 'max_attempts',
    'retention_ms', 'backoff_ms', 'max_backoff_ms')
  if not found[1] then return nil end
  queue.revision, queue.lease = tonumber(found[1]), tonumber(found[2])
  queue.limit, queue.max_attempts = tonumber(found[3]), tonumber(found[4])
  queue.retention = tonumber(found[5] or nil)
  queue.backoff, queue.max_backoff = tonumber(found[6] or 0), tonumber(found[7] or 0)
  facets.expect('zset', queue.leases, queue.index, queue.depths, due)
  facets.expect('hash', queue.count, held)
  return queue
end

-- Sets the bounds that a publish has to respect: numbers of messages of the queue and of a facet that wait or are delayed
-- (0 for none), and 1 to drop the oldest instead of rejecting new ones.
function facets.bound(queue, max, facet_max, drop)
  queue.bounded, queue.max, queue.facet_max, queue.drops = true, tonumber(max), tonumber(facet_max), drop == '1'
  local counts = redis.call('HMGET', queue.count, 'waiting', 'delayed')
  -- The size of the queue, and what the call adds to facets: waiting and delayed messages.
  queue.size = tonumber(counts[1] or 0) + tonumber(counts[2] or 0)
  queue.added, queue.plans, queue.fresh, queue.refused = 0, {}, 0, {}
end

-- The facet of an environment, and how many messages of it wait and are delayed with what the call adds.
local function sizes_of(queue, env)
  local facet, plan = facets.load(queue, env), queue.plans[env]
  return facet.waiting + (plan and plan.waiting or 0), facet.delayed + (plan and plan.delayed or 0), facet
end

-- The facets at the top of the ranking with their ranked depths, the deepest first.
local function deepest(queue, count)
  return redis.call('ZRANGE', queue.depths, 0, count - 1, 'REV', 'WITHSCORES')
end

-- Whether a queue that rejects messages can accept `count` more of an environment. A full queue still accepts those of a
-- tenant that has less than its share, up to twice the bound: otherwise one tenant could lock out all others.
local function has_space(queue, env, count)
  local waiting, delayed, facet = sizes_of(queue, env)
  local depth = waiting + delayed + count
  if queue.facet_max > 0 and depth > queue.facet_max then return false end
  if queue.max == 0 or queue.size + count <= queue.max then return true end
  if queue.size + count > 2 * queue.max then return false end
  local is_fresh = not facet.known and not queue.plans[env]
  local tenants = redis.call('ZCARD', queue.index) + queue.fresh + (is_fresh and 1 or 0)
  return depth <= math.max(1, queue.max / tenants)
end

-- Whether a queue that drops messages can accept `count` more of an environment that are delayed. It drops waiting messages,
-- and delayed ones for another tenant's sake only. So a tenant whose own delayed messages fill the queue is rejected.
local function has_space_later(queue, env, count)
  local waiting, delayed = sizes_of(queue, env)
  if queue.facet_max > 0 and delayed + count > queue.facet_max then return false end
  if queue.max == 0 or queue.size + count <= queue.max or waiting > 0 then return true end
  local top = deepest(queue, 2)
  local largest = tonumber((top[1] == env and top[4] or top[2]) or 0)
  return delayed + count <= largest
end

-- Whether a bounded queue can accept `count` more messages of an environment, which are delayed or not.
function facets.fits(queue, env, count, is_delayed)
  if not queue.bounded then return true end
  if not queue.drops then return has_space(queue, env, count) end
  return not is_delayed or has_space_later(queue, env, count)
end

-- Counts a message that a bounded queue will accept.
function facets.plan(queue, env, is_delayed)
  if not queue.bounded then return end
  local plan = queue.plans[env]
  if not plan then
    if not facets.load(queue, env).known then queue.fresh = queue.fresh + 1 end
    plan = { waiting = 0, delayed = 0 }
    queue.plans[env] = plan
  end
  local place = is_delayed and 'delayed' or 'waiting'
  plan[place] = plan[place] + 1
  queue.size, queue.added = queue.size + 1, queue.added + 1
end

-- Counts an event that a full queue does not get, for its gap.
function facets.refuse(queue, env, id)
  local refused = queue.refused[env]
  if refused then
    refused.last, refused.count = id, refused.count + 1
  else
    queue.refused[env] = { first = id, last = id, count = 1 }
  end
end

-- Whether a facet can be pulled from.
function facets.eligible(facet)
  return facet.weight > 0 and facet.waiting > 0 and not facet.throttled
    and (facet.limit == 0 or facet.flying < facet.limit)
end

-- Sets a facet's rules, and reads whether it has used up its rate.
function facets.rule(queue, facet, rules)
  facet.rules, facet.limit, facet.rate, facet.throttled = rules, queue.limit, false, false
  if rules == '' then return end
  local limit, rate = string.match(rules, '^(%d*):(%d*)$')
  if limit ~= '' then facet.limit = tonumber(limit) end
  if rate ~= '' then
    facet.rate = tonumber(rate)
    facet.throttled = redis.call('ZSCORE', queue.throttled, facet.env) and true or false
  end
end

-- The number of messages that the rate allows now, in millionths: a token bucket that holds one second of the rate, but
-- at least one message. It is stored separately, because the facet may be removed between two messages.
function facets.tokens(queue, facet, now)
  local full = math.max(MESSAGE, facet.rate * 1000)
  local saved = redis.call('HGET', queue.rates, facet.env)
  if not saved then return full end
  local tokens, at = string.match(saved, '^(%S+) (%d+)$')
  return math.min(full, tonumber(tokens) + math.max(0, now - tonumber(at)) * facet.rate)
end

-- Takes messages out of the token bucket.
function facets.spend(facet, messages)
  facet.tokens = facet.tokens - messages * MESSAGE
  facet.throttled = facet.tokens < MESSAGE
end

-- The number of whole messages that the rate allows.
function facets.allowed(facet)
  return math.floor(facet.tokens / MESSAGE)
end

-- Stores the rest of the token bucket. A facet that has used up its rate leaves the ring; a sweep puts it back at the
-- right time.
function facets.use_rate(queue, facet, now)
  redis.call('HSET', queue.rates, facet.env, text(facet.tokens) .. ' ' .. text(now))
  if not facet.throttled then return end
  local due = now + math.max(1, math.ceil((MESSAGE - facet.tokens) / facet.rate))
  redis.call('ZADD', queue.throttled, text(due), facet.env)
  facets.schedule(queue, due)
end

-- The fields whose stored values are remembered, so that only changed ones are written.
local CHANGES = { 'flying', 'delayed', 'used', 'weight', 'dwell', 'rules', 'rank' }
local function remember(facet)
  facet.old = {
    flying = facet.flying, delayed = facet.delayed, used = facet.used, weight = facet.weight, dwell = facet.dwell,
    rules = facet.rules, rank = facet.rank,
  }
end

-- Reads a facet. The reads fail if keys have the wrong type.
function facets.load(queue, env)
  local facet = queue.facets[env]
  if facet then return facet end
  local key, list = queue.base .. '|facet:' .. env, queue.base .. ':' .. env
  local found = redis.call('HMGET', key, 'weight', 'flying', 'delayed', 'used', 'dwell', 'rules', 'rank')
  -- Fields that are filled in later are created here, because a table that grows is slower. `taken` and `backlog` are
  -- for pulls.
  facet = {
    env = env, key = key, list = list, known = found[2] and true or false, weight = tonumber(found[1] or 1),
    flying = tonumber(found[2] or 0), delayed = tonumber(found[3] or 0), used = tonumber(found[4] or 0),
    dwell = tonumber(found[5] or nil), waiting = redis.call('LLEN', list), was_eligible = false, old = false,
    taken = false, backlog = false, rules = '', limit = queue.limit, rate = false, throttled = false,
    rank = tonumber(found[7] or 0),
  }
  if found[6] then facets.rule(queue, facet, found[6]) end
  remember(facet)
  facet.was_eligible = facet.known and facets.eligible(facet)
  queue.facets[env] = facet
  queue.touched[#queue.touched + 1] = facet
  return facet
end

-- Whether a facet's depth differs so much from the ranked one (0 if it is not in the ranking) that it is ranked again.
local function is_misranked(facet)
  local depth = facet.waiting + facet.delayed
  if depth < MIN_RANKED then return facet.rank > 0 end
  return math.abs(depth - facet.rank) > facet.rank * RANK_TOLERANCE
end

facets.is_misranked = is_misranked

local function rank(queue, facet)
  if not is_misranked(facet) then return end
  local depth = facet.waiting + facet.delayed
  if depth < MIN_RANKED then
    redis.call('ZREM', queue.depths, facet.env)
    facet.rank = 0
  else
    redis.call('ZADD', queue.depths, text(depth), facet.env)
    facet.rank = depth
  end
end

-- Writes a facet, or removes it if it has no messages.
function facets.write(queue, facet)
  rank(queue, facet)
  if facet.waiting == 0 and facet.delayed == 0 and facet.flying == 0 then
    redis.call('DEL', facet.key)
    redis.call('ZREM', queue.index, facet.env)
    facet.known = false
    return
  end
  if not facet.known then
    redis.call('HSET', facet.key, 'weight', text(facet.weight), 'flying', text(facet.flying),
      'delayed', text(facet.delayed), 'used', text(facet.used), 'dwell', facet.dwell and text(facet.dwell) or '')
    if facet.rules ~= '' then redis.call('HSET', facet.key, 'rules', facet.rules) end
    if facet.rank > 0 then redis.call('HSET', facet.key, 'rank', text(facet.rank)) end
    redis.call('ZADD', queue.index, 0, facet.env)
    facet.known = true
    remember(facet)
    return
  end
  local fields, n = {}, 0
  for i = 1, #CHANGES do
    local name = CHANGES[i]
    if facet[name] ~= facet.old[name] then
      fields[n + 1], fields[n + 2] = name, name == 'rules' and facet.rules or text(facet[name])
      n = n + 2
    end
  end
  lists.call('HSET', facet.key, fields)
  remember(facet)
end

-- Adds those facets to the tail of the ring that are not in it. Positions in the ring only rise, and the head has the
-- lowest. If the ring was empty, waiting consumers are woken. Returns how many facets were added.
function facets.enter(queue, envs)
  local last = redis.call('ZRANGE', queue.ring, -1, -1, 'WITHSCORES')[2]
  local places, place = {}, tonumber(last or 0)
  for i = 1, #envs do
    place = place + 1
    places[2 * i - 1], places[2 * i] = text(place), envs[i]
  end
  if not last then queue.woken = true end
  local added = 0
  lists.each(places, function(...) added = added + redis.call('ZADD', queue.ring, 'NX', ...) end)
  return added
end

-- Records that a consumer waits for one facet, and has to be notified when it enters the ring, even if other facets are
-- in the ring. At the memory limit this fails, and the consumer waits until it asks again.
function facets.watch(queue, wait_ms)
  local key = queue.base .. '|watched'
  local noted = redis.pcall('SET', key, '1', 'NX', 'PX', wait_ms)
  if not noted then redis.call('PEXPIRE', key, wait_ms, 'GT') end
end

-- Adds a facet to the ring or removes it, if that has changed, and writes it. A facet enters at the tail with a full
-- turn. `unknown` means that the definition has changed, so it is unknown whether the facet is in the ring.
function facets.settle(queue, facet, unknown)
  local should = facets.eligible(facet)
  if should and (unknown or not facet.was_eligible) then
    if facets.enter(queue, { facet.env }) == 1 then
      facet.used = 0
      if queue.watched == nil then queue.watched = redis.call('EXISTS', queue.base .. '|watched') == 1 end
      if queue.watched then queue.entered[facet.env] = true end
    end
  elseif not should and (unknown or facet.was_eligible) then
    redis.call('ZREM', queue.ring, facet.env)
    facet.used = 0
  end
  facets.write(queue, facet)
  facet.was_eligible = should
end

-- Changes a counter of the queue; `finish` writes it.
function facets.add(queue, name, delta)
  queue.deltas[name] = (queue.deltas[name] or 0) + delta
end

-- Records that a message needs its body in the log (1), or no longer needs it (-1); `finish` writes it.
function facets.hold(queue, segment, delta)
  queue.segments[segment] = (queue.segments[segment] or 0) + delta
end

-- Changes the number of bytes that the fabric stores for an environment (see publish_quota.lua of the bus). With
-- `segment`, the body is in that segment of the log.
function facets.charge(queue, env, bytes, segment)
  local base = string.sub(queue.prefix, 1, -1 - #'queue:') .. 'bus:'
  local key = base .. 'environments'
  if redis.call('HINCRBY', key, env, text(bytes)) <= 0 then
    redis.call('HDEL', key, env)
    redis.call('HDEL', key .. ':clients', env)
  end
  if segment then redis.call('HINCRBY', base .. 'log:' .. segment .. ':environments', env, text(bytes)) end
end

-- The body of a message: in its segment of the log, whose key begins with `log`, or with the queue.
function facets.body(queue, log, id, segment)
  return redis.call('HGET', segment == LATER and queue.later or log .. ':' .. segment, id)
end

-- Releases the body of a message that was delayed.
function facets.release(queue, id, segment, env)
  if segment ~= LATER then return facets.hold(queue, segment, -1) end
  facets.charge(queue, env, -redis.call('HSTRLEN', queue.later, id))
  redis.call('HDEL', queue.later, id)
end

-- Appends items to a facet. `weight` and `rules` are those of the definition, for a new facet.
function facets.push(queue, facet, items, weight, rules)
  if not facet.known then
    facet.weight = weight
    facets.rule(queue, facet, rules)
  end
  lists.call('RPUSH', facet.list, items)
  facet.waiting = facet.waiting + #items
  facets.add(queue, 'waiting', #items)
  -- Usually the eligibility of the facet does not change, and nothing else has to be written.
  if not facet.known or facets.eligible(facet) ~= facet.was_eligible then
    facets.settle(queue, facet)
  elseif is_misranked(facet) then
    facets.write(queue, facet)
  end
end

-- Stores a message that is delivered for the first time at `due` or later. The other arguments are those of `push`.
function facets.push_later(queue, facet, id, body, due, weight, rules)
  if not facet.known then
    facet.weight = weight
    facets.rule(queue, facet, rules)
  end
  redis.call('HSET', queue.later, id, body)
  redis.call('ZADD', queue.delayed, text(due), id .. '@' .. LATER .. ' ' .. facet.env)
  facet.delayed = facet.delayed + 1
  facets.add(queue, 'delayed', 1)
  facets.schedule(queue, due)
  facets.settle(queue, facet)
end

-- The pause before the next delivery of a message after `attempts` failed ones: ms, 0 without backoff.
function facets.backoff(queue, attempts)
  if queue.backoff == 0 then return 0 end
  return math.min(queue.backoff * 2 ^ math.min(attempts - 1, 40), queue.max_backoff)
end

-- Delays messages in flight. Each is { env, item }. `land` has already subtracted them from their facets.
function facets.delay(queue, messages, dues)
  for i, message in ipairs(messages) do
    redis.call('ZADD', queue.delayed, text(dues[i]), message.item .. ' ' .. message.env)
    local facet = facets.load(queue, message.env)
    facet.delayed = facet.delayed + 1
    facets.schedule(queue, dues[i])
  end
  facets.add(queue, 'delayed', #messages)
end

-- Records messages of an environment that a full queue dropped or did not get: `gaps` has a field for each environment with
-- the lowest and the highest id, the number of messages, and the time of the last drop.
local function note_gap(queue, env, lowest, highest, count, now)
  local gap = redis.call('HGET', queue.gaps, env)
  if not gap and redis.call('HLEN', queue.gaps) >= MAX_GAPS then
    env = ''
    gap = redis.call('HGET', queue.gaps, env)
  end
  local first, last, number = string.match(gap or '', '^(%d+) (%d+) (%d+) ')
  first, last, number = tonumber(first), tonumber(last), tonumber(number or 0)
  first, last = math.min(first or lowest, lowest), math.max(last or highest, highest)
  redis.call('HSET', queue.gaps, env, table.concat({ text(first), text(last), text(number + count), text(now) }, ' '))
  facets.add(queue, 'dropped', count)
end

-- Limits how many messages of each facet a full queue has to drop, so that the deepest ones become equally deep. Each victim
-- is { facet, depth, touched }; those that the call has added to are dropped from last, if they are as deep as others.
-- Sets `take`.
local function level(victims, over)
  table.sort(victims, function(a, b)
    if a.depth ~= b.depth then return a.depth > b.depth end
    if a.touched ~= b.touched then return b.touched end
    return a.facet.env < b.facet.env
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

-- Facets among which a full queue searches for messages to drop, with the depths that they have after the call: those at
-- the top of the ranking, the one whose turn it is, and those that the call adds to.
local function find_victims(queue, taken)
  local victims, seen = {}, {}
  local function add(env)
    if not env or seen[env] then return end
    seen[env] = true
    local waiting, delayed, facet = sizes_of(queue, env)
    victims[#victims + 1] = {
      facet = facet, depth = waiting + delayed - (taken[env] or 0), touched = queue.plans[env] and true or false, take = 0,
    }
  end
  local top = deepest(queue, MAX_VICTIMS)
  for i = 1, #top, 2 do add(top[i]) end
  add(redis.call('ZRANGE', queue.ring, 0, 0)[1])
  for env in pairs(queue.plans) do add(env) end
  return victims
end

-- Delayed messages by environment, from a sample: the tenant that has most of them is in it. Those that are due last are
-- first.
local function sample_delayed(queue)
  local found, by_env = redis.call('ZRANDMEMBER', queue.delayed, MAX_SAMPLED, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    local item, env = string.match(found[i], '^(%S+) (.*)$')
    local list = by_env[env] or {}
    by_env[env] = list
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

-- Plans what a queue drops that exceeds its bounds, before the first write: first the oldest messages of each facet that
-- has too many, then those of the deepest facets. `drops` has for each facet how many waiting messages, and which delayed
-- ones, if too few wait.
function facets.plan_drops(queue)
  if not queue.bounded or not queue.drops or queue.added == 0 then return end
  local most, taken, drops, size = DROPS_PER_MESSAGE * queue.added + MORE_DROPS, {}, {}, queue.size
  for env in pairs(queue.plans) do
    local waiting, delayed = sizes_of(queue, env)
    local over = queue.facet_max > 0 and math.min(waiting + delayed - queue.facet_max, waiting, most) or 0
    if over > 0 then taken[env], size = over, size - over end
  end
  local over = queue.max > 0 and math.min(size - queue.max, most) or 0
  if over > 0 then
    local victims = find_victims(queue, taken)
    level(victims, over)
    for _, victim in ipairs(victims) do
      if victim.take > 0 then taken[victim.facet.env] = (taken[victim.facet.env] or 0) + victim.take end
    end
  end
  local sampled
  for env, count in pairs(taken) do
    local waiting, _, facet = sizes_of(queue, env)
    local drop = { facet = facet, waiting = math.min(count, waiting), delayed = {} }
    if count > waiting then
      sampled = sampled or sample_delayed(queue)
      for i = 1, math.min(count - waiting, #(sampled[env] or {})) do drop.delayed[i] = sampled[env][i] end
    end
    drops[#drops + 1] = drop
  end
  queue.dropping = drops
end

-- Drops waiting and delayed messages of a facet.
local function drop_from(queue, drop, now)
  local facet = drop.facet
  local items = drop.waiting > 0 and redis.call('LPOP', facet.list, drop.waiting) or {}
  local lowest, highest
  local function drop_one(item)
    local id, segment = facets.item(item)
    facets.release(queue, id, segment, facet.env)
    id = tonumber(id)
    lowest, highest = math.min(lowest or id, id), math.max(highest or id, id)
  end
  for i = 1, #items do drop_one(items[i]) end
  for i = 1, #drop.delayed do
    redis.call('ZREM', queue.delayed, drop.delayed[i].member)
    drop_one(drop.delayed[i].item)
  end
  if not lowest then return end
  facet.waiting, facet.delayed = facet.waiting - #items, facet.delayed - #drop.delayed
  facets.add(queue, 'waiting', -#items)
  facets.add(queue, 'delayed', -#drop.delayed)
  note_gap(queue, facet.env, lowest, highest, #items + #drop.delayed, now)
  facets.settle(queue, facet)
end

-- Drops what exceeds the bounds of a queue, and records what it did not get.
function facets.keep_bounds(queue, now)
  if not queue.bounded then return end
  for _, drop in ipairs(queue.dropping or {}) do drop_from(queue, drop, now) end
  for env, refused in pairs(queue.refused) do
    note_gap(queue, env, tonumber(refused.first), tonumber(refused.last), refused.count, now)
  end
end

-- Takes from the head of a facet the items that precede this id: an earlier part returned them. Reads at most
-- MAX_PRECEDING.
local function take_preceding(list, id)
  local head = redis.call('LINDEX', list, 0)
  if not head or tonumber((facets.item(head))) > id then return {} end
  local items, count = redis.call('LRANGE', list, 0, MAX_PRECEDING - 1), 0
  while items[count + 1] and tonumber((facets.item(items[count + 1]))) < id do count = count + 1 end
  redis.call('LTRIM', list, count, -1)
  return lists.copy(items, 1, count)
end

-- Returns messages to the heads of their facets, in the order of their ids, even if they are returned in several parts. Each
-- is { env, item, id }.
function facets.give_back(queue, messages)
  table.sort(messages, function(a, b) return tonumber(a.id) > tonumber(b.id) end)
  local returned, order = {}, {}
  for _, message in ipairs(messages) do
    local facet = facets.load(queue, message.env)
    local items = returned[facet]
    if not items then
      items = take_preceding(facet.list, tonumber(message.id))
      returned[facet], order[#order + 1] = items, facet
    end
    items[#items + 1] = message.item
    facet.waiting = facet.waiting + 1
  end
  for _, facet in ipairs(order) do
    local items = returned[facet]
    table.sort(items, function(a, b) return tonumber((facets.item(a))) > tonumber((facets.item(b))) end)
    lists.call('LPUSH', facet.list, items)
  end
  facets.add(queue, 'waiting', #messages)
end

-- Turns messages into dead letters with their bodies, so that the log need not keep them. Each message is { id,
-- segment, attempts, env, body }. Above `keep` dead letters the oldest are dropped, at most twice as many as are added, and
-- some more: so a list whose limit was lowered shrinks to it without a long call. A message whose body was lost is only dropped.
function facets.bury(queue, messages, reason, now, keep)
  for _, message in ipairs(messages) do
    facets.hold(queue, message.segment, -1)
    facets.add(queue, message.body and 'died' or 'lost', 1)
    if message.body then
      redis.call('RPUSH', queue.dead, cmsgpack.pack({
        text(now), text(message.attempts), reason, message.env, message.id, message.body,
      }))
    end
  end
  local over = math.min(redis.call('LLEN', queue.dead) - keep, DROPS_PER_MESSAGE * #messages + MORE_DROPS)
  if over > 0 then
    redis.call('LTRIM', queue.dead, over, -1)
    facets.add(queue, 'dropped', over)
  end
end

-- The message in flight with this id, from its stored value: `nonce attempts item environment`. nil without a value. The
-- second value is its proof: the nonce and the attempt.
function facets.flying(id, value)
  local proof, attempts, item, env = string.match(value or '', '^(%S+ (%d+)) (%S+) (.*)$')
  if not proof then return nil end
  local _, segment = facets.item(item)
  return { id = id, attempts = tonumber(attempts), item = item, env = env, segment = segment }, proof
end

-- Reads the messages in flight under these ids and proofs (an array id, proof, id, proof …). Returns an array with
-- { id, attempts, item, env, segment } or false for each; of a repeated receipt, only the first gets the message.
function facets.held_by(queue, receipts)
  local ids, seen, found = {}, {}, {}
  for i = 1, #receipts, 2 do ids[#ids + 1] = receipts[i] end
  local values = lists.read('HMGET', queue.inflight, ids)
  for i = 1, #ids do
    local message, proof = facets.flying(ids[i], values[i])
    found[i] = message and not seen[ids[i]] and proof == receipts[2 * i] and message or false
    if found[i] then seen[ids[i]] = true end
  end
  return found
end

-- Ends the leases of messages. Redis accepts the ZREM at its memory limit, and then everything after it. Loads their
-- facets; the caller must call `settle` for each (`settle_all`).
function facets.land(queue, messages)
  local ids = {}
  for i, message in ipairs(messages) do
    ids[i] = message.id
    local facet = facets.load(queue, message.env)
    facet.flying = facet.flying - 1
  end
  if #ids == 0 then return end
  lists.call('ZREM', queue.leases, ids)
  lists.call('HDEL', queue.inflight, ids)
  facets.add(queue, 'inflight', -#ids)
end

-- Settles every loaded facet, in the order of loading.
function facets.settle_all(queue, unknown)
  for _, facet in ipairs(queue.touched) do facets.settle(queue, facet, unknown) end
end

-- Records when a lease ends or a message is due. Sweepers sleep until the earliest such time; if it becomes earlier, it
-- is published to them.
function facets.schedule(queue, due)
  if redis.call('ZADD', queue.due, 'LT', 'CH', text(due), queue.name) == 1
    and redis.call('ZRANK', queue.due, queue.name) == 0 then
    queue.earlier = due
  end
end

-- The earliest time at which a lease ends, a message is due, or the rate of a facet allows messages again; nil if there
-- is none.
function facets.next_due(queue)
  local first
  for _, key in ipairs({ queue.leases, queue.delayed, queue.throttled }) do
    local due = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if due and not (first and first <= due) then first = due end
  end
  return first
end

-- Must be called last: it writes the counters and wakes sleepers, once per call.
function facets.finish(queue)
  for name, delta in pairs(queue.deltas) do
    if delta ~= 0 then redis.call('HINCRBY', queue.count, name, text(delta)) end
  end
  for segment, delta in pairs(queue.segments) do
    if delta ~= 0 and redis.call('HINCRBY', queue.held, segment, text(delta)) <= 0 then
      redis.call('HDEL', queue.held, segment)
    end
  end
  if queue.woken then redis.call('PUBLISH', queue.prefix .. 'wake', 'pull ' .. queue.name) end
  for env in pairs(queue.entered) do
    redis.call('PUBLISH', queue.prefix .. 'wake', 'only ' .. queue.name .. '|' .. env)
  end
  if queue.earlier then redis.call('PUBLISH', queue.prefix .. 'wake', 'due ' .. text(queue.earlier)) end
end
