-- facets: shared code of every script that accesses queues. It is appended to those scripts at compile time, which
-- define `main(facets)` above.
--
-- A queue is opened by its ring's key. Keys that only the script can know (which environment, which segment of the
-- log) are built from declared ones, so they carry the same hash tag and live in the same shard.
--
-- A facet is one environment's part of a queue. It exists while it has messages: waiting in its list, delayed, or in
-- flight. It is in the ring while it can be pulled from: its weight is above 0, messages wait, and fewer are in flight
-- than the limit. The ring is a sorted set, so no facet is in it twice, and removing one takes no search.

local facets = {}

-- Ten seconds of ids: the span of one segment of the log.
local SEGMENT = 64000000
local EPOCH = 1704067200000

-- Lua's own conversion writes 1.7e+15; ids and times must keep every digit.
local function text(number)
  return string.format('%.0f', number)
end
facets.text = text

function facets.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Raises an error unless each key is absent or of the type. Redis does not undo a script that fails half-way, so the
-- types of keys are checked before the first write.
function facets.expect(kind, ...)
  for n = 1, select('#', ...) do
    local key = select(n, ...)
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      error({ err = 'WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. kind })
    end
  end
end

-- The segment that an id lies in. Most ids of a call lie in the same.
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

-- The item with another number of attempts.
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

-- A queue, by the key of its ring; `held` and `due` are the shard's. `limit` is the number of messages in flight that
-- a facet may have, 0 for any.
function facets.open(held, due, ring, limit)
  local base = string.match(ring, '^(.*)|ring$')
  return {
    base = base, name = string.match(base, 'queue:([^:|]+)$'), limit = limit,
    held = held, due = due, ring = ring, prefix = string.match(held, '^(.*)|held$'),
    leases = base .. '|leases', inflight = base .. '|inflight', delayed = base .. '|delayed',
    dead = base .. '|dead', count = base .. '|count', index = base .. '|facets', settings = base .. '|settings',
    facets = {}, touched = {}, deltas = {}, segments = {}, entered = {},
  }
end

-- Opens a queue with its settings in the shard; nil when there are none (it was deleted).
function facets.configured(held, due, ring)
  local queue = facets.open(held, due, ring, 0)
  local found = redis.call('HMGET', queue.settings, 'revision', 'lease_ms', 'in_flight_limit', 'max_attempts')
  if not found[1] then return nil end
  queue.revision, queue.lease = tonumber(found[1]), tonumber(found[2])
  queue.limit, queue.max_attempts = tonumber(found[3]), tonumber(found[4])
  facets.expect('zset', queue.leases, queue.index, due)
  facets.expect('hash', queue.count, held)
  return queue
end

-- Whether a facet can be pulled from.
function facets.eligible(queue, facet)
  return facet.weight > 0 and facet.waiting > 0 and (queue.limit == 0 or facet.flying < queue.limit)
end

-- A copy of the fields as they are in Redis, so that only changed ones are written.
local CHANGES = { 'flying', 'delayed', 'used', 'weight', 'dwell' }
local function remember(facet)
  facet.old = {
    flying = facet.flying, delayed = facet.delayed, used = facet.used, weight = facet.weight, dwell = facet.dwell,
  }
end

-- Reads a facet. The reads detect keys of another type.
function facets.load(queue, env)
  local facet = queue.facets[env]
  if facet then return facet end
  local key, list = queue.base .. '|facet:' .. env, queue.base .. ':' .. env
  local found = redis.call('HMGET', key, 'weight', 'flying', 'delayed', 'used', 'dwell')
  -- Fields that are filled in later are made here: a table that grows is slower. `taken` and `backlog` are a pull's.
  facet = {
    env = env, key = key, list = list, known = found[2] and true or false, weight = tonumber(found[1] or 1),
    flying = tonumber(found[2] or 0), delayed = tonumber(found[3] or 0), used = tonumber(found[4] or 0),
    dwell = tonumber(found[5] or nil), waiting = redis.call('LLEN', list), was_eligible = false, old = false,
    taken = false, backlog = false,
  }
  remember(facet)
  facet.was_eligible = facet.known and facets.eligible(queue, facet)
  queue.facets[env] = facet
  queue.touched[#queue.touched + 1] = facet
  return facet
end

-- Writes a facet, or removes it when it has no messages.
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
    redis.call('ZADD', queue.index, 0, facet.env)
    facet.known = true
    remember(facet)
    return
  end
  local fields, n = {}, 0
  for i = 1, #CHANGES do
    local name = CHANGES[i]
    if facet[name] ~= facet.old[name] then
      fields[n + 1], fields[n + 2] = name, text(facet[name])
      n = n + 2
    end
  end
  if n > 0 then redis.call('HSET', facet.key, unpack(fields)) end
  remember(facet)
end

-- Puts facets at the tail of the ring, those that are not in it. Places in the ring only rise: the head has the lowest.
-- If the ring was empty, consumers that wait for messages are woken. Returns how many were put in.
function facets.enter(queue, envs)
  local last = redis.call('ZRANGE', queue.ring, -1, -1, 'WITHSCORES')[2]
  local places, place = {}, tonumber(last or 0)
  for i = 1, #envs do
    place = place + 1
    places[2 * i - 1], places[2 * i] = text(place), envs[i]
  end
  if not last then queue.woken = true end
  return redis.call('ZADD', queue.ring, 'NX', unpack(places))
end

-- Records that a consumer waits for one facet, and has to be notified when it enters the ring, even if others are in
-- the ring. At the memory limit this fails, and the consumer waits until it asks again.
function facets.watch(queue, wait_ms)
  local key = queue.base .. '|watched'
  local noted = redis.pcall('SET', key, '1', 'NX', 'PX', wait_ms)
  if not noted then redis.call('PEXPIRE', key, wait_ms, 'GT') end
end

-- Puts a facet into the ring or removes it if that has changed, and writes it. A facet enters at the tail, with a whole
-- turn. `unknown` when the definition has changed, and the facet may be in the ring or not.
function facets.settle(queue, facet, unknown)
  local should = facets.eligible(queue, facet)
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

-- Adds to a number of the queue; `finish` writes it.
function facets.add(queue, name, delta)
  queue.deltas[name] = (queue.deltas[name] or 0) + delta
end

-- Records that a message needs its body in the log (1), or no longer needs it (-1); `finish` writes it.
function facets.hold(queue, segment, delta)
  queue.segments[segment] = (queue.segments[segment] or 0) + delta
end

-- Appends items to a facet. `weight` is that of the definition, for a new facet.
function facets.push(queue, facet, items, weight)
  if not facet.known then facet.weight = weight end
  redis.call('RPUSH', facet.list, unpack(items))
  facet.waiting = facet.waiting + #items
  facets.add(queue, 'waiting', #items)
  -- Usually the facet is in the ring already, or may not be in it: then nothing else changes.
  if not facet.known or facets.eligible(queue, facet) ~= facet.was_eligible then facets.settle(queue, facet) end
end

-- Gives messages back to the heads of their facets, in the order of their ids. Each is { env, item, id }.
function facets.give_back(queue, messages)
  table.sort(messages, function(a, b) return tonumber(a.id) > tonumber(b.id) end)
  for _, message in ipairs(messages) do
    local facet = facets.load(queue, message.env)
    redis.call('LPUSH', facet.list, message.item)
    facet.waiting = facet.waiting + 1
  end
  facets.add(queue, 'waiting', #messages)
end

-- Makes dead letters of messages, with their bodies, so that the log need not keep them. Each message is { id, segment,
-- attempts, env, body }. Above `keep` dead letters the oldest are dropped. A message whose body was lost becomes none.
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

-- Reads what is in flight under these ids and nonces (an array id, nonce, id, nonce …). Returns an array with
-- { id, attempts, item, env, segment } or false in each place; a receipt that is given twice is held once.
function facets.held_by(queue, receipts)
  local ids, seen, found = {}, {}, {}
  for i = 1, #receipts, 2 do ids[#ids + 1] = receipts[i] end
  local values = redis.call('HMGET', queue.inflight, unpack(ids))
  for i = 1, #ids do
    found[i] = false
    local value = values[i]
    if value and not seen[ids[i]] then
      local nonce, attempts, item, env = string.match(value, '^(%S+) (%d+) (%S+) (.*)$')
      if nonce == receipts[2 * i] then
        local _, segment = facets.item(item)
        found[i] = { id = ids[i], attempts = tonumber(attempts), item = item, env = env, segment = segment }
        seen[ids[i]] = true
      end
    end
  end
  return found
end

-- Ends the flight of messages. Its ZREM is allowed at the memory limit, and so is everything after it. Loads their
-- facets; the caller ends with `settle` of each (`settle_all`).
function facets.land(queue, messages)
  local ids = {}
  for i, message in ipairs(messages) do
    ids[i] = message.id
    local facet = facets.load(queue, message.env)
    facet.flying = facet.flying - 1
  end
  if #ids == 0 then return end
  redis.call('ZREM', queue.leases, unpack(ids))
  redis.call('HDEL', queue.inflight, unpack(ids))
  facets.add(queue, 'inflight', -#ids)
end

-- Settles every facet that was loaded, in that order.
function facets.settle_all(queue, unknown)
  for _, facet in ipairs(queue.touched) do facets.settle(queue, facet, unknown) end
end

-- Records when a lease ends or a message is due. Sweepers sleep until the earliest moment, and an earlier one is
-- published to them.
function facets.schedule(queue, due)
  if redis.call('ZADD', queue.due, 'LT', 'CH', text(due), queue.name) == 1
    and redis.call('ZRANK', queue.due, queue.name) == 0 then
    queue.earlier = due
  end
end

-- The earliest moment at which a lease ends or a message is due; nil when there is none.
function facets.next_due(queue)
  local lease = redis.call('ZRANGE', queue.leases, 0, 0, 'WITHSCORES')[2]
  local delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')[2]
  if lease and delayed then return math.min(tonumber(lease), tonumber(delayed)) end
  return tonumber(lease or delayed or nil)
end

-- Call this last: it writes the numbers and wakes sleepers, once for the call.
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
