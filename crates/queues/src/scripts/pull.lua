-- Delivers messages, fair between facets: the facet at the head of the ring keeps its turn until its weight is used,
-- then goes to the tail (deficit round robin, in messages). The cost depends on how many messages are delivered, not
-- on how many facets there are.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum bytes of bodies (the first message is delivered whatever its size)
-- ARGV[3]: integer, 1 to acknowledge immediately
-- ARGV[4]: integer, revision of the queue that the caller knows
-- ARGV[5]: string, the only environment to deliver messages of, out of turn; empty for all of them in turn
-- ARGV[6]: integer, ms for which the caller waits for a message of that environment, 0 if it does not
-- ARGV[7]: integer, ms of the leases; 0 for what the queue defines
-- ARGV[8...]: strings, for each consumer the maximum number of its messages, and random characters for its receipts.
--   The first messages are for the first consumer.
-- Returns `gone` (no such queue here), `behind` (the shard has older settings than the caller), or an array: unix ms,
-- end of the leases, 1 when there is more (of the environment, if one was named), the next moment at which a message
-- may become available or an empty string, how many bodies were lost, how many messages were dropped because they had
-- waited for too long; then for each message id, attempt, environment, how many waited in its facet, and body.
-- Caller: Store::pull

-- Maximum number of expired messages that one call drops.
local MAX_EXPIRED = 500

-- The settings of a pull.
local function read_pull(facets, queue)
  local now, max = facets.now(ARGV[1]), 0
  for i = 8, #ARGV, 2 do max = max + tonumber(ARGV[i]) end
  return {
    now = now, oldest = queue.retention and now - queue.retention or 0, max = max, max_bytes = tonumber(ARGV[2]),
    auto = ARGV[3] == '1', only = ARGV[5] ~= '' and ARGV[5], wait_ms = tonumber(ARGV[6]),
  }
end

-- The ring as a pull sees it. `order` has the facets from the head on (the first `loaded` of them; a pull appends those
-- whose turn ended); `head` and `tail` are indexes in it. `whole` if it contains every facet. A pull of one environment
-- does not change the turns, including that of its facet.
local function read_ring(facets, queue, pull)
  local order
  if pull.only then
    order = facets.eligible(facets.load(queue, pull.only)) and { pull.only } or {}
  else
    order = redis.call('ZRANGE', queue.ring, 0, pull.max - 1)
  end
  local loaded = #order
  local whole = pull.only or redis.call('ZCARD', queue.ring) == loaded
  return { order = order, loaded = loaded, whole = whole, head = 1, tail = loaded }
end

-- Updates the time that messages of the facet wait before they are delivered: a moving average, in ms.
local function note_dwell(facet, since, now)
  local dwell = math.max(0, now - since)
  facet.dwell = facet.dwell and facet.dwell + (dwell - facet.dwell) / 8 or dwell
end

-- How many messages of one facet may be picked, if its turn allows `credit` more.
local function quota(facets, facet, pull, picked, credit)
  local n = math.min(credit, facet.waiting, pull.max - picked.count)
  if facet.limit > 0 and not pull.auto then n = math.min(n, facet.limit - facet.flying) end
  if facet.rate then n = math.min(n, facets.allowed(facet)) end
  return n
end

-- Picks messages of one facet, whose turn allows `credit` more. Returns the remaining credit. A message that has waited
-- for too long is dropped and uses no credit.
local function pick_of(facets, facet, pull, picked, credit)
  local n = quota(facets, facet, pull, picked, credit)
  local items = n > 0 and redis.call('LRANGE', facet.list, facet.taken, facet.taken + n - 1) or {}
  local messages, lost, expired, log = picked.messages, picked.lost, picked.expired, KEYS[4] .. ':'
  local gone, old = 0, #expired
  for i = 1, #items do
    local item = items[i]
    local id, segment, attempts = facets.item(item)
    local since, body = facets.since(item), redis.call('HGET', log .. segment, id)
    if not body then
      lost[#lost + 1] = segment
    elseif facets.available_before(item, pull.oldest) then
      expired[#expired + 1] = segment
      picked.full = #expired >= MAX_EXPIRED
    elseif #messages > 0 and picked.bytes + #body > pull.max_bytes then
      picked.full = true
      break
    else
      picked.bytes = picked.bytes + #body
      if not pull.auto then facet.flying = facet.flying + 1 end
      if attempts == 0 then note_dwell(facet, since, pull.now) end
      messages[#messages + 1] = {
        id = id, segment = segment, attempt = attempts + 1, item = item, facet = facet, body = body,
      }
    end
    gone = i
    if picked.full then break end
  end
  local served = gone - (#expired - old)
  facet.taken, facet.waiting, picked.count = facet.taken + gone, facet.waiting - gone, picked.count + served
  if facet.rate then facets.spend(facet, served) end
  return credit - served
end

-- Ends the turn of the facet at the head of the ring, if its credit is used up.
local function turn(facets, facet, ring, credit, only)
  if not facets.eligible(facet) then
    facet.used = 0
    ring.head = ring.head + 1
  elseif not only and credit <= 0 then
    facet.used = 0
    ring.head, ring.tail = ring.head + 1, ring.tail + 1
    ring.order[ring.tail] = facet.env
  elseif not only then
    -- Its turn continues: this call is full, or some bodies were lost.
    facet.used = facet.weight - credit
  end
end

-- Picks the messages to deliver: `messages`, the segments of lost bodies and of expired messages (`expired`), the
-- visited facets, and the number of served or lost messages (`count`). It only reads, and changes `ring` to the state
-- that has to be written.
local function pick(facets, queue, pull, ring)
  local picked = { messages = {}, lost = {}, expired = {}, visited = {}, count = 0, bytes = 0, full = false }
  local visited = picked.visited
  while picked.count < pull.max and ring.head <= ring.tail and not picked.full
    and (ring.whole or ring.head <= ring.loaded) do
    local facet = facets.load(queue, ring.order[ring.head])
    if not facet.taken then
      facet.taken, facet.backlog = 0, facet.waiting
      if facet.rate then facet.tokens = facets.tokens(queue, facet, pull.now) end
      visited[#visited + 1] = facet
    end
    local credit = pull.only and facet.waiting or facet.weight - facet.used
    turn(facets, facet, ring, pick_of(facets, facet, pull, picked, credit), pull.only)
  end
  return picked
end

-- Writes the changed facets and the ring.
local function write_facets(facets, queue, pull, ring, picked)
  local visited, popped = picked.visited, math.min(ring.head - 1, ring.loaded)
  for i = 1, #visited do
    if visited[i].taken > 0 then redis.call('LPOP', visited[i].list, visited[i].taken) end
  end
  if pull.only then
    if popped > 0 then redis.call('ZREM', queue.ring, pull.only) end
    if #picked.messages == 0 and pull.wait_ms > 0 then facets.watch(queue, pull.wait_ms) end
  else
    if popped > 0 then redis.call('ZREMRANGEBYRANK', queue.ring, 0, popped - 1) end
    local from = math.max(ring.head, ring.loaded + 1)
    if from <= ring.tail then facets.enter(queue, lists.copy(ring.order, from, ring.tail)) end
  end
  queue.woken = false -- the consumer that pulled wakes the next one
  for i = 1, #visited do
    facets.write(queue, visited[i])
    if visited[i].rate then facets.use_rate(queue, visited[i], pull.now) end
  end
end

-- Records the leases, or removes the messages if they are acknowledged already.
local function write_leases(facets, queue, pull, messages, until_ms, until_text)
  local leases, inflight, text = {}, {}, facets.text
  local consumer, last = 8, tonumber(ARGV[8])
  for i = 1, #messages do
    local message = messages[i]
    while i > last do
      consumer = consumer + 2
      last = last + tonumber(ARGV[consumer])
    end
    if pull.auto then
      facets.hold(queue, message.segment, -1)
    else
      local n = 2 * i
      leases[n - 1], leases[n] = until_text, message.id
      inflight[n - 1] = message.id
      inflight[n] = ARGV[consumer + 1] .. ' ' .. text(message.attempt) .. ' '
        .. facets.tried(message.item, message.attempt) .. ' ' .. message.facet.env
    end
  end
  if #leases == 0 then return end
  lists.call('ZADD', queue.leases, leases)
  lists.call('HSET', queue.inflight, inflight)
  facets.add(queue, 'inflight', #messages)
  facets.schedule(queue, until_ms)
end

-- Updates the queue's counters.
local function write_numbers(facets, queue, pull, picked)
  local lost, expired = picked.lost, picked.expired
  for i = 1, #lost do facets.hold(queue, lost[i], -1) end
  for i = 1, #expired do facets.hold(queue, expired[i], -1) end
  facets.add(queue, 'waiting', -picked.count - #expired)
  facets.add(queue, 'dropped', #expired)
  facets.add(queue, 'pulled', #picked.messages)
  facets.add(queue, 'lost', #lost)
  if pull.auto then facets.add(queue, 'acked', #picked.messages) end
  facets.finish(queue)
end

local function main(facets)
  local text = facets.text
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return 'gone' end
  if queue.revision < tonumber(ARGV[4]) then return 'behind' end
  facets.expect('hash', queue.inflight)
  local pull = read_pull(facets, queue)
  local lease_ms = tonumber(ARGV[7])
  local until_ms = pull.now + (lease_ms > 0 and lease_ms or queue.lease)
  local until_text = text(until_ms)
  local ring = read_ring(facets, queue, pull)
  local picked = pick(facets, queue, pull, ring)
  local messages = picked.messages

  -- From here on nothing is rejected. The first write frees memory, so Redis accepts it and everything after it at its
  -- memory limit. Otherwise queues could not be drained there.
  write_facets(facets, queue, pull, ring, picked)
  write_leases(facets, queue, pull, messages, until_ms, until_text)
  write_numbers(facets, queue, pull, picked)

  local more = ring.whole and ring.tail < ring.head and '0' or '1'
  local due = #messages == 0 and facets.next_due(queue)
  local reply = { text(pull.now), until_text, more, due and text(due) or '', text(#picked.lost), text(#picked.expired) }
  local words = #reply
  for i = 1, #messages do
    local message = messages[i]
    reply[words + 1], reply[words + 2], reply[words + 3] = message.id, text(message.attempt), message.facet.env
    reply[words + 4], reply[words + 5] = text(message.facet.backlog), message.body
    words = words + 5
  end
  return reply
end
