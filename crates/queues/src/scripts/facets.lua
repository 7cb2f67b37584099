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

-- When the message was accepted, or stored again if that was later: unix ms.
function facets.since(item)
  local number = tonumber(item)
  if number then return EPOCH + math.floor(number / 6400) end
  local id, segment = string.match(item, '^(%d+)@?(%d*)')
  local since = EPOCH + math.floor(tonumber(id) / 6400)
  local again = EPOCH + (tonumber(segment) or 0) * 10000
  return again > since and again or since
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
  facets.expect('zset', queue.leases, queue.index, due)
  facets.expect('hash', queue.count, held)
  return queue
end

-- Sets the bounds that a publish has to respect: maximum numbers of messages of the queue and of a facet that wait or
-- are delayed (0 for none), and 1 to drop the oldest instead of rejecting new ones.
function facets.bound(queue, max, facet_max, drop)
  queue.bounded, queue.max, queue.facet_max, queue.drops = true, tonumber(max), tonumber(facet_max), drop == '1'
  local counts = redis.call('HMGET', queue.count, 'waiting', 'delayed')
  -- These sizes include what the call adds, before it is written.
  queue.size, queue.sizes = tonumber(counts[1] or 0) + tonumber(counts[2] or 0), {}
  queue.written = queue.size
end

local function size_of(queue, env)
  local size = queue.sizes[env]
  if size then return size end
  local facet = facets.load(queue, env)
  return facet.waiting + facet.delayed
end

-- Whether a bounded queue that rejects messages can accept `count` more of an environment.
function facets.fits(queue, env, count)
  if not queue.bounded or queue.drops then return true end
  return (queue.max == 0 or queue.size + count <= queue.max)
    and (queue.facet_max == 0 or size_of(queue, env) + count <= queue.facet_max)
end

-- Counts a message that a bounded queue will accept.
function facets.plan(queue, env)
  if not queue.bounded then return end
  queue.sizes[env], queue.size = size_of(queue, env) + 1, queue.size + 1
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
local CHANGES = { 'flying', 'delayed', 'used', 'weight', 'dwell', 'rules' }
local function remember(facet)
  facet.old = {
    flying = facet.flying, delayed = facet.delayed, used = facet.used, weight = facet.weight, dwell = facet.dwell,
    rules = facet.rules,
  }
end

-- Reads a facet. The reads fail if keys have the wrong type.
function facets.load(queue, env)
  local facet = queue.facets[env]
  if facet then return facet end
  local key, list = queue.base .. '|facet:' .. env, queue.base .. ':' .. env
  local found = redis.call('HMGET', key, 'weight', 'flying', 'delayed', 'used', 'dwell', 'rules')
  -- Fields that are filled in later are created here, because a table that grows is slower. `taken` and `backlog` are
  -- for pulls.
  facet = {
    env = env, key = key, list = list, known = found[2] and true or false, weight = tonumber(found[1] or 1),
    flying = tonumber(found[2] or 0), delayed = tonumber(found[3] or 0), used = tonumber(found[4] or 0),
    dwell = tonumber(found[5] or nil), waiting = redis.call('LLEN', list), was_eligible = false, old = false,
    taken = false, backlog = false, rules = '', limit = queue.limit, rate = false, throttled = false,
  }
  if found[6] then facets.rule(queue, facet, found[6]) end
  remember(facet)
  facet.was_eligible = facet.known and facets.eligible(facet)
  queue.facets[env] = facet
  queue.touched[#queue.touched + 1] = facet
  return facet
end

-- Writes a facet, or removes it if it has no messages.
function facets.write(queue, facet)
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

-- Changes the number of bytes that the fabric stores for an environment, if they are limited (see publish_quota.lua of
-- the bus). With `segment`, the body is in that segment of the log.
function facets.charge(queue, env, bytes, segment)
  local base = string.sub(queue.prefix, 1, -1 - #'queue:') .. 'bus:'
  local key = base .. 'environments'
  if redis.call('EXISTS', key) == 0 then return end
  if redis.call('HINCRBY', key, env, text(bytes)) <= 0 then redis.call('HDEL', key, env) end
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
  if not facet.known or facets.eligible(facet) ~= facet.was_eligible then facets.settle(queue, facet) end
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

-- Drops the `count` oldest waiting messages of a facet, and records them: `gaps` has a field for each facet with the
-- lowest and the highest id, the number of messages, and the time of the last drop.
function facets.drop_oldest(queue, facet, count, now)
  local items = redis.call('LPOP', facet.list, count) or {}
  if #items == 0 then return end
  local name = facet.env
  local gap = redis.call('HGET', queue.gaps, name)
  if not gap and redis.call('HLEN', queue.gaps) >= MAX_GAPS then
    name = ''
    gap = redis.call('HGET', queue.gaps, name)
  end
  local first, last, number = string.match(gap or '', '^(%d+) (%d+) (%d+) ')
  first, last, number = tonumber(first), tonumber(last), tonumber(number or 0)
  for i = 1, #items do
    local id, segment = facets.item(items[i])
    facets.hold(queue, segment, -1)
    id = tonumber(id)
    first, last = math.min(first or id, id), math.max(last or id, id)
  end
  facet.waiting = facet.waiting - #items
  redis.call('HSET', queue.gaps, name,
    table.concat({ text(first), text(last), text(number + #items), text(now) }, ' '))
  facets.add(queue, 'waiting', -#items)
  facets.add(queue, 'dropped', #items)
  facets.settle(queue, facet)
end

-- Returns messages to the heads of their facets, in the order of their ids. Each is { env, item, id }.
function facets.give_back(queue, messages)
  table.sort(messages, function(a, b) return tonumber(a.id) > tonumber(b.id) end)
  for _, message in ipairs(messages) do
    local facet = facets.load(queue, message.env)
    redis.call('LPUSH', facet.list, message.item)
    facet.waiting = facet.waiting + 1
  end
  facets.add(queue, 'waiting', #messages)
end

-- Turns messages into dead letters with their bodies, so that the log need not keep them. Each message is { id,
-- segment, attempts, env, body }. Above `keep` dead letters the oldest are dropped. A message whose body was lost is
-- only dropped.
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
  local over = redis.call('LLEN', queue.dead) - keep
  if over > 0 then
    redis.call('LPOP', queue.dead, over)
    facets.add(queue, 'dropped', over)
  end
end

-- If the queue exceeds its bounds after `added` messages were added to a facet, drops the facet's oldest messages.
function facets.keep_bounds(queue, facet, added, now)
  if not queue.bounded then return end
  local over = 0
  queue.written = queue.written + added
  if queue.max > 0 then over = queue.written - queue.max end
  if queue.facet_max > 0 then over = math.max(over, facet.waiting + facet.delayed - queue.facet_max) end
  over = math.min(over, facet.waiting)
  if over <= 0 then return end
  queue.written = queue.written - over
  facets.drop_oldest(queue, facet, over, now)
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
