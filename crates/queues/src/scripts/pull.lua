-- Delivers messages, fair between slices: the slice at the head of the ring keeps its turn until its weight is used,
-- then goes to the tail (deficit round robin, in messages). The cost depends on how many messages are delivered, not
-- on how many slices there are.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum bytes of bodies (the first message is delivered whatever its size)
-- ARGV[3]: integer, 1 to acknowledge immediately
-- ARGV[4]: integer, revision of the queue that the caller knows
-- ARGV[5]: string, the only tenant to deliver messages of, out of turn; empty for all of them in turn
-- ARGV[6]: integer, ms for which the caller waits for a message of that tenant, 0 if it does not
-- ARGV[7]: integer, ms of the leases; 0 for what the queue defines
-- ARGV[8...]: strings, for each consumer the maximum number of its messages, and random characters for its receipts.
--   The first messages are for the first consumer.
-- Returns `gone` (no such queue here), `behind` (the shard has older settings than the caller), or an array: unix ms,
-- end of the leases, 1 when there is more (of the tenant, if one was named), the next moment at which a message
-- may become available or an empty string, how many bodies were lost, how many messages were dropped because they had
-- waited for too long; then for each message id, attempt, tenant, how many waited in its slice, and body.
-- Caller: Store::pull

-- Maximum number of expired messages that one call drops.
local MAX_EXPIRED = 500

-- The settings of a pull.
local function read_pull(slices, queue)
  local now, max = slices.now(ARGV[1]), 0
  for i = 8, #ARGV, 2 do max = max + tonumber(ARGV[i]) end
  return {
    now = now, oldest = queue.retention and now - queue.retention or 0, max = max, max_bytes = tonumber(ARGV[2]),
    auto = ARGV[3] == '1', only = ARGV[5] ~= '' and ARGV[5], wait_ms = tonumber(ARGV[6]),
  }
end

-- The ring as a pull sees it. `order` has the slices from the head on (the first `loaded` of them; a pull appends those
-- whose turn ended); `head` and `tail` are indexes in it. `whole` if it contains every slice. A pull of one tenant
-- does not change the turns, including that of its slice.
local function read_ring(slices, queue, pull)
  local order
  if pull.only then
    order = slices.eligible(slices.load(queue, pull.only)) and { pull.only } or {}
  else
    order = redis.call('ZRANGE', queue.ring, 0, pull.max - 1)
  end
  local loaded = #order
  local whole = pull.only or redis.call('ZCARD', queue.ring) == loaded
  return { order = order, loaded = loaded, whole = whole, head = 1, tail = loaded }
end

-- Updates the time that messages of the slice wait before they are delivered: a moving average, in ms.
local function note_dwell(slice, since, now)
  local dwell = math.max(0, now - since)
  slice.dwell = slice.dwell and slice.dwell + (dwell - slice.dwell) / 8 or dwell
end

-- How many messages of one slice may be picked, if its turn allows `credit` more.
local function quota(slices, slice, pull, picked, credit)
  local n = math.min(credit, slice.waiting, pull.max - picked.count)
  if slice.limit > 0 and not pull.auto then n = math.min(n, slice.limit - slice.flying) end
  if slice.rate then n = math.min(n, slices.allowed(slice)) end
  return n
end

-- Picks messages of one slice, whose turn allows `credit` more. Returns the remaining credit. A message that has waited
-- for too long is dropped and uses no credit.
local function pick_of(slices, slice, pull, picked, credit)
  local n = quota(slices, slice, pull, picked, credit)
  local items = n > 0 and redis.call('LRANGE', slice.list, slice.taken, slice.taken + n - 1) or {}
  local messages, lost, expired, log = picked.messages, picked.lost, picked.expired, KEYS[4] .. ':'
  local gone, old = 0, #expired
  for i = 1, #items do
    local item = items[i]
    local id, segment, attempts = slices.item(item)
    local since, body = slices.since(item), redis.call('HGET', log .. segment, id)
    if not body then
      lost[#lost + 1] = segment
    elseif slices.available_before(item, pull.oldest) then
      expired[#expired + 1] = segment
      picked.full = #expired >= MAX_EXPIRED
    elseif #messages > 0 and picked.bytes + #body > pull.max_bytes then
      picked.full = true
      break
    else
      picked.bytes = picked.bytes + #body
      if not pull.auto then slice.flying = slice.flying + 1 end
      if attempts == 0 then note_dwell(slice, since, pull.now) end
      messages[#messages + 1] = {
        id = id, segment = segment, attempt = attempts + 1, item = item, slice = slice, body = body,
      }
    end
    gone = i
    if picked.full then break end
  end
  local served = gone - (#expired - old)
  slice.taken, slice.waiting, picked.count = slice.taken + gone, slice.waiting - gone, picked.count + served
  if slice.rate then slices.spend(slice, served) end
  return credit - served
end

-- Ends the turn of the slice at the head of the ring, if its credit is used up.
local function turn(slices, slice, ring, credit, only)
  if not slices.eligible(slice) then
    slice.used = 0
    ring.head = ring.head + 1
  elseif not only and credit <= 0 then
    slice.used = 0
    ring.head, ring.tail = ring.head + 1, ring.tail + 1
    ring.order[ring.tail] = slice.tenant
  elseif not only then
    -- Its turn continues: this call is full, or some bodies were lost.
    slice.used = slice.weight - credit
  end
end

-- Picks the messages to deliver: `messages`, the segments of lost bodies and of expired messages (`expired`), the
-- visited slices, and the number of served or lost messages (`count`). It only reads, and changes `ring` to the state
-- that has to be written.
local function pick(slices, queue, pull, ring)
  local picked = { messages = {}, lost = {}, expired = {}, visited = {}, count = 0, bytes = 0, full = false }
  local visited = picked.visited
  while picked.count < pull.max and ring.head <= ring.tail and not picked.full
    and (ring.whole or ring.head <= ring.loaded) do
    local slice = slices.load(queue, ring.order[ring.head])
    if not slice.taken then
      slice.taken, slice.backlog = 0, slice.waiting
      if slice.rate then slice.tokens = slices.tokens(queue, slice, pull.now) end
      visited[#visited + 1] = slice
    end
    local credit = pull.only and slice.waiting or slice.weight - slice.used
    turn(slices, slice, ring, pick_of(slices, slice, pull, picked, credit), pull.only)
  end
  return picked
end

-- Writes the changed slices and the ring.
local function write_slices(slices, queue, pull, ring, picked)
  local visited, popped = picked.visited, math.min(ring.head - 1, ring.loaded)
  for i = 1, #visited do
    if visited[i].taken > 0 then redis.call('LPOP', visited[i].list, visited[i].taken) end
  end
  if pull.only then
    if popped > 0 then redis.call('ZREM', queue.ring, pull.only) end
    if #picked.messages == 0 and pull.wait_ms > 0 then slices.watch(queue, pull.wait_ms) end
  else
    if popped > 0 then redis.call('ZREMRANGEBYRANK', queue.ring, 0, popped - 1) end
    local from = math.max(ring.head, ring.loaded + 1)
    if from <= ring.tail then slices.enter(queue, lists.copy(ring.order, from, ring.tail)) end
  end
  queue.woken = false -- the consumer that pulled wakes the next one
  for i = 1, #visited do
    slices.write(queue, visited[i])
    if visited[i].rate then slices.use_rate(queue, visited[i], pull.now) end
  end
end

-- Records the leases, or removes the messages if they are acknowledged already.
local function write_leases(slices, queue, pull, messages, until_ms, until_text)
  local leases, inflight, text = {}, {}, slices.text
  local consumer, last = 8, tonumber(ARGV[8])
  for i = 1, #messages do
    local message = messages[i]
    while i > last do
      consumer = consumer + 2
      last = last + tonumber(ARGV[consumer])
    end
    if pull.auto then
      slices.hold(queue, message.segment, -1)
    else
      local n = 2 * i
      leases[n - 1], leases[n] = until_text, message.id
      inflight[n - 1] = message.id
      inflight[n] = ARGV[consumer + 1] .. ' ' .. text(message.attempt) .. ' '
        .. slices.tried(message.item, message.attempt) .. ' ' .. message.slice.tenant
    end
  end
  if #leases == 0 then return end
  lists.call('ZADD', queue.leases, leases)
  lists.call('HSET', queue.inflight, inflight)
  slices.add(queue, 'inflight', #messages)
  slices.schedule(queue, until_ms)
end

-- Updates the queue's counters.
local function write_numbers(slices, queue, pull, picked)
  local lost, expired = picked.lost, picked.expired
  for i = 1, #lost do slices.hold(queue, lost[i], -1) end
  for i = 1, #expired do slices.hold(queue, expired[i], -1) end
  slices.add(queue, 'waiting', -picked.count - #expired)
  slices.add(queue, 'dropped', #expired)
  slices.add(queue, 'pulled', #picked.messages)
  slices.add(queue, 'lost', #lost)
  if pull.auto then slices.add(queue, 'acked', #picked.messages) end
  slices.finish(queue)
end

local function main(slices)
  local text = slices.text
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return 'gone' end
  if queue.revision < tonumber(ARGV[4]) then return 'behind' end
  slices.expect('hash', queue.inflight)
  local pull = read_pull(slices, queue)
  local lease_ms = tonumber(ARGV[7])
  local until_ms = pull.now + (lease_ms > 0 and lease_ms or queue.lease)
  local until_text = text(until_ms)
  local ring = read_ring(slices, queue, pull)
  local picked = pick(slices, queue, pull, ring)
  local messages = picked.messages

  -- From here on nothing is rejected. The first write frees memory, so Redis accepts it and everything after it at its
  -- memory limit. Otherwise queues could not be drained there.
  write_slices(slices, queue, pull, ring, picked)
  write_leases(slices, queue, pull, messages, until_ms, until_text)
  write_numbers(slices, queue, pull, picked)

  local more = ring.whole and ring.tail < ring.head and '0' or '1'
  local due = #messages == 0 and slices.next_due(queue)
  local reply = { text(pull.now), until_text, more, due and text(due) or '', text(#picked.lost), text(#picked.expired) }
  local words = #reply
  for i = 1, #messages do
    local message = messages[i]
    reply[words + 1], reply[words + 2], reply[words + 3] = message.id, text(message.attempt), message.slice.tenant
    reply[words + 4], reply[words + 5] = text(message.slice.backlog), message.body
    words = words + 5
  end
  return reply
end
