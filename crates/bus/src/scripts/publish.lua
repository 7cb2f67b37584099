-- Accepts events: numbers them, stores each once, appends them to the batches of every subscriber and to their facets
-- of every queue that takes them, and publishes them live. They come in groups: the events of one object, with its new state if that changes. All of a group is new,
-- or it is a repeat or refused. All of the call happens, or nothing. The events of an object that has a backend go to
-- the object's queue and nowhere else.
-- KEYS[1]: zset, index of batches
-- KEYS[2]: hash, events by token
-- KEYS[3]: hash, batches by token
-- KEYS[4]: set, all jobs
-- KEYS[5]: zset, scheduled jobs
-- KEYS[6]: list, instant jobs
-- KEYS[7]: set, workers that hold a job
-- KEYS[8]: hash, heartbeats of workers
-- KEYS[9]: hash, counters
-- KEYS[10]: hash, the registry of this shard
-- KEYS[11]: string, the last call of this pacemaker: its sequence and reply
-- KEYS[12]: string, the last id given out in this shard
-- KEYS[13]: hash, object -> its last id, then each topic it had events of with the last id of both
-- KEYS[14]: hash, the same, of objects that have been quiet for long
-- KEYS[15]: hash, segment of the log -> bytes
-- KEYS[16]: hash, when the two hashes of objects were last exchanged; `logged`, the last id in the log, while a later
-- one went to a backend
-- KEYS[17...]: hash, a topic's counter, for each topic; then two for each client with idempotency keys: hash, key
-- digest -> what was published under it; zset, key digest -> when; then, if there are queues: hash, messages of queues
-- by segment of the log; zset, queues by when they have something due; zset, the ring of each queue
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp that the fan-out below was computed from
-- ARGV[3]: integer, sequence of this call, higher than that of every earlier one
-- ARGV[4]: integer, number of the shard
-- ARGV[5]: string, sixteen random characters
-- ARGV[6]: integer, bytes of a batch
-- ARGV[7]: integer, objects to remember
-- ARGV[8]: integer, ms to remember them
-- ARGV[9]: integer, idempotency keys to remember for a client
-- ARGV[10]: integer, ms to remember them
-- ARGV[11]: integer, number of subscribers
-- ARGV[12]: integer, number of topics
-- ARGV[13]: integer, number of clients with idempotency keys
-- ARGV[14]: integer, number of groups
-- ARGV[15]: integer, number of queues
-- ARGV[16]: integer, events that may wait for a backend in the queue of one object
-- ARGV[17]: integer, 1 when groups bring changes of labels, else 0
-- ARGV[18...]: for each subscriber token, generation, concurrency, most events of a batch, timeout in ms; for each
-- topic its name, the number of its subscribers and their places in the list before; for each queue how many messages of
-- a facet may be in flight, 0 for any; for each group its object, the object's hash, either nothing or `client digest
-- body` (the client's place, the digest of the idempotency key, the digest of what was sent), the object's new state or
-- nothing, the object's backend or nothing, the number of its events, and for each of these the topic's place (0 for
-- none: a message), the live channel, the rest of its JSON and, if there are queues, `place:weight` for each that
-- takes it; then, if ARGV[17] says so, the change of a label that belongs to the group, as labels.lua reads it. A group
-- with such a change may have no events
-- Returns `ok` and three words for each event: id, prev or `-`, tprev or `-`; within a group ids follow each other by
-- 64. Or three words for a group: `r`, its first id, `-` for a repeat under its key; `c`, `-`, `-` for something else
-- under the key; `f`, `-`, `-` when the object's queue is full; `x`, `-`, `-` when the label is not as its change expects
-- it; `n`, `-`, `-` for a change without events. Or one word: `stale` (the registry has moved on),
-- `empty` (there is no registry), `late` (a later call of this pacemaker came first; nothing was done).
-- Caller: Store::publish

local function main(lanes, open_facets, open_objects, open_labels)
  local fmt, call, floor, max = string.format, redis.call, math.floor, math.max
  local saved = call('GET', KEYS[11])
  if saved then
    local space = string.find(saved, ' ', 1, true)
    local sequence = tonumber(string.sub(saved, 1, space - 1))
    if sequence == tonumber(ARGV[3]) then return string.sub(saved, space + 1) end
    if sequence > tonumber(ARGV[3]) then return 'late' end
  end
  local stamp = call('HGET', KEYS[10], 'stamp')
  if not stamp then return 'empty' end
  if stamp ~= ARGV[2] then return 'stale' end

  local now = lanes.now(ARGV[1])
  local new_bid = lanes.bids(ARGV[5])
  local batch_bytes = tonumber(ARGV[6])
  local subs, topics, clients, count =
    tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
  local with_queues = tonumber(ARGV[15])
  local at = 18
  local labels = ARGV[17] == '1' and open_labels(lanes)

  local subscribers = {}
  for s = 1, subs do
    subscribers[s] = {
      token = ARGV[at], generation = ARGV[at + 1], concurrency = tonumber(ARGV[at + 2]),
      max = tonumber(ARGV[at + 3]), timeout = tonumber(ARGV[at + 4]), bytes = batch_bytes,
      buckets = {}, numbers = {},
    }
    at = at + 5
  end
  local by_topic = {}
  for t = 1, topics do
    local topic = { name = ARGV[at], count = 0 }
    local n = tonumber(ARGV[at + 1])
    at = at + 2
    for i = 1, n do topic[i] = subscribers[tonumber(ARGV[at + i - 1])] end
    at = at + n
    by_topic[t] = topic
  end

  local facets, queues = with_queues > 0 and open_facets(), {}
  for q = 1, with_queues do
    local first = 16 + topics + 2 * clients
    queues[q] = facets.open(KEYS[first + 1], KEYS[first + 2], KEYS[first + 2 + q], tonumber(ARGV[at]))
    queues[q].pushes, queues[q].envs = {}, {}
    at = at + 1
  end

  -- Every read comes before the first write, and what is not read is asked for its type.
  lanes.expect_own()
  lanes.expect('hash', KEYS[13], KEYS[14], KEYS[15], KEYS[16])
  for t = 1, topics do lanes.expect('hash', KEYS[16 + t]) end
  local last = tonumber(call('GET', KEYS[12]) or 0)

  -- What is remembered of the objects, in one read; then of those not found, in another. Memory is one field for an
  -- object, `id topic id topic id`, because fields are what such a read and write cost.
  local groups, names, memories, with_backends = {}, {}, {}, false
  for g = 1, count do
    local object = ARGV[at]
    local memory = memories[object]
    if not memory then
      memory = {}
      memories[object] = memory
      names[#names + 1] = object
    end
    local group = {
      object = object, memory = memory, hash = tonumber(ARGV[at + 1]), key = ARGV[at + 2], state = ARGV[at + 3],
    }
    if ARGV[at + 4] ~= '' then
      memory.backend = ARGV[at + 4]
      with_backends = true
    end
    local n = tonumber(ARGV[at + 5])
    at = at + 6
    for i = 1, n do
      group[i] = { topic = by_topic[tonumber(ARGV[at])], channel = ARGV[at + 1], rest = ARGV[at + 2] }
      at = at + 3
      if facets then
        group[i].queues = ARGV[at]
        at = at + 1
      end
    end
    if labels then group.change, at = labels.read(at, group.object) end
    groups[g] = group
  end
  local missing = {}
  local function remember(wanted, found)
    for i = 1, #wanted do
      local text, memory = found[i], memories[wanted[i]]
      if text then
        -- An object that had messages only has no topics.
        memory.id = string.match(text, '^%d+')
        memory.topics = {}
        memory.order = {}
        for topic, id in string.gmatch(text, ' (%S+) (%d+)') do
          memory.topics[topic] = id
          memory.order[#memory.order + 1] = topic
        end
      else
        memory.topics, memory.order = {}, {}
        missing[#missing + 1] = wanted[i]
      end
    end
  end
  remember(names, call('HMGET', KEYS[13], unpack(names)))
  if #missing > 0 and call('HLEN', KEYS[14]) > 0 then
    local wanted = missing
    missing = {}
    remember(wanted, call('HMGET', KEYS[14], unpack(wanted)))
  end

  -- Where objects have their queues. One that has events waiting keeps its backend until they are sent, whatever its
  -- name belongs to by now, and nothing overtakes them.
  local objects
  local queued = lanes.objects .. 'queued'
  if with_backends or call('EXISTS', queued) == 1 then
    objects = open_objects()
    objects.at(lanes.objects)
    local backends, with_one = call('HMGET', queued, unpack(names)), {}
    for i = 1, #names do
      local memory = memories[names[i]]
      memory.queued = backends[i] and true or false
      memory.backend = backends[i] or memory.backend
      if memory.backend then
        with_one[#with_one + 1] = names[i]
        objects.expect_backend(memory.backend)
      end
    end
    if #with_one > 0 then
      objects.expect('hash', 'numbers')
      -- Of a leased object one event is in flight, and counts.
      local leased = call('ZMSCORE', objects.key('leases'), unpack(with_one))
      for i = 1, #with_one do
        local waiting = call('LLEN', objects.of(with_one[i], 'events')) + (leased[i] and 1 or 0)
        memories[with_one[i]].room = tonumber(ARGV[16]) - waiting
      end
    end
  end

  -- Streams tell by `last` that they missed something, so it names what is in the log, and not what went to a backend.
  local state = call('HMGET', KEYS[16], 'exchanged_at', 'logged')
  local exchanged = tonumber(state[1] or 0)
  local logged = tonumber(state[2] or last)

  -- Number the events, look up idempotency keys, and sort the ids into lanes.
  local lowest = (now - 1704067200000) * 6400 + tonumber(ARGV[4])
  local reply, words = { 'ok' }, 0
  local segments, under_key, accepted, changed = {}, {}, 0, false
  local segment
  local function say(first, second, third)
    reply[words + 2], reply[words + 3], reply[words + 4] = first, second, third
    words = words + 3
  end
  -- Gives an event its numbers.
  local function number(event, memory)
    local before = fmt('%.0f', logged)
    last = max(last + 64, lowest)
    local id, topic = fmt('%.0f', last), event.topic
    local prev, tprev = memory.id, topic and memory.topics[topic.name]
    memory.id, memory.changed = id, true
    if topic then
      if not tprev then memory.order[#memory.order + 1] = topic.name end
      memory.topics[topic.name] = id
      topic.count = topic.count + 1
    end
    local head = '{"id":' .. id
    if prev then head = head .. ',"prev":' .. prev end
    if tprev then head = head .. ',"tprev":' .. tprev end
    event.entry = head .. ',"last":' .. before .. ',' .. event.rest
    event.id = id
    say(id, prev or '-', tprev or '-')
    accepted = accepted + 1
  end
  -- Gives an event of the bus its place in the log and its places in lanes and queues.
  local function spread(event, hash)
    local id, topic = event.id, event.topic
    local of = floor(last / 64000000)
    if not segment or segment.number ~= of then
      segment = { number = of, name = fmt('%.0f', of), bodies = {}, order = {}, bytes = 0 }
      segments[#segments + 1] = segment
    end
    local size = #event.entry
    local n = #segment.order
    segment.order[n + 1] = id
    segment.bodies[2 * n + 1] = id
    segment.bodies[2 * n + 2] = event.entry
    segment.bytes = segment.bytes + size
    for s = 1, topic and #topic or 0 do
      local sub = topic[s]
      local lane = hash % sub.concurrency
      local bucket = sub.buckets[lane]
      if not bucket then
        bucket = { items = {}, sizes = {}, n = 0 }
        sub.buckets[lane] = bucket
        sub.numbers[#sub.numbers + 1] = lane
      end
      n = bucket.n + 1
      bucket.items[n] = id
      bucket.sizes[n] = size
      bucket.n = n
    end
    if facets and event.queues ~= '' then
      local env = string.match(event.channel, '^[^:]*')
      for place, weight in string.gmatch(event.queues, '(%d+):(%d+)') do
        local queue = queues[tonumber(place)]
        local push = queue.pushes[env]
        if not push then
          push = { items = {}, weight = tonumber(weight) }
          queue.pushes[env] = push
          queue.envs[#queue.envs + 1] = env
        end
        push.items[#push.items + 1] = id
        facets.hold(queue, segment.name, 1)
      end
    end
  end
  for g = 1, count do
    local group = groups[g]
    local memory, verdict, place, body = group.memory, nil, nil, nil
    -- A message (it has no topic) is for queues, whatever objects are called.
    local diverted = memory.backend and group[1] and group[1].topic
    if group.key ~= '' then
      group.client, group.digest, body = string.match(group.key, '^(%d+) (%S+) (%S+)$')
      local keys = KEYS[16 + topics + 2 * group.client - 1]
      place = group.client .. ' ' .. group.digest
      local known = under_key[place] or call('HGET', keys, group.digest)
      if known then
        local known_body, known_id, when = string.match(known, '^(%S+) (%d+) (%d+)$')
        if tonumber(when) + tonumber(ARGV[10]) > now then
          verdict = known_body == body and known_id or 'conflict'
        end
      end
    end
    if verdict == 'conflict' then
      say('c', '-', '-')
    elseif verdict then
      say('r', verdict, '-')
    elseif diverted and #group > memory.room then
      say('f', '-', '-')
    elseif group.change and not labels.fits(group.change) then
      say('x', '-', '-')
    else
      for i = 1, #group do
        number(group[i], memory)
        if not diverted then
          logged = last
          spread(group[i], group.hash)
        end
      end
      if diverted then memory.room = memory.room - #group end
      if #group == 0 then say('n', '-', '-') end
      if group.change then changed = true end
      group.new, group.diverted = true, diverted
      if place then
        group.known = body .. ' ' .. group[1].id .. ' ' .. fmt('%.0f', now)
        under_key[place] = group.known
      end
    end
  end
  for s = 1, subs do
    local sub = subscribers[s]
    if #sub.numbers > 0 then sub.states = lanes.plan(sub, sub.numbers) end
  end
  for s = 1, #segments do
    lanes.expect('hash', lanes.base .. 'log:' .. segments[s].name)
    lanes.expect('list', lanes.base .. 'log:' .. segments[s].name .. ':order')
  end
  for c = 1, clients do
    lanes.expect('hash', KEYS[16 + topics + 2 * c - 1])
    lanes.expect('zset', KEYS[16 + topics + 2 * c])
  end
  for q = 1, with_queues do
    local queue = queues[q]
    facets.expect('zset', queue.ring, queue.index)
    facets.expect('hash', queue.count, queue.held)
    for _, env in ipairs(queue.envs) do facets.load(queue, env) end
  end
  local remembered = call('HLEN', KEYS[13])

  -- From here on nothing is refused. The first write needs memory, so at the memory limit nothing is half done.
  local answer = table.concat(reply, ' ')
  call('SET', KEYS[11], ARGV[3] .. ' ' .. answer, 'PX', 600000)
  if accepted == 0 then
    if changed then
      for g = 1, count do
        if groups[g].new and groups[g].change then labels.write(groups[g].change, 0) end
      end
      labels.finish()
    end
    return answer
  end
  call('SET', KEYS[12], fmt('%.0f', last))
  if logged ~= last then
    call('HSET', KEYS[16], 'logged', fmt('%.0f', logged))
  elseif state[2] then
    call('HDEL', KEYS[16], 'logged')
  end

  -- An object is remembered for one to two periods: two hashes, the older one forgotten as a whole.
  if exchanged == 0 then
    call('HSET', KEYS[16], 'exchanged_at', fmt('%.0f', now))
  elseif remembered > 0 and (remembered >= tonumber(ARGV[7]) or now >= exchanged + tonumber(ARGV[8])) then
    call('UNLINK', KEYS[14])
    call('RENAME', KEYS[13], KEYS[14])
    call('HSET', KEYS[16], 'exchanged_at', fmt('%.0f', now))
  end
  local flat, n = {}, 0
  for i = 1, #names do
    local memory = memories[names[i]]
    if memory.changed then
      local text = memory.id
      -- More topics than anybody has for one object: the ones it had first are forgotten first.
      for t = max(1, #memory.order - 99), #memory.order do
        text = text .. ' ' .. memory.order[t] .. ' ' .. memory.topics[memory.order[t]]
      end
      flat[n + 1], flat[n + 2] = names[i], text
      n = n + 2
    end
  end
  call('HSET', KEYS[13], unpack(flat))

  for s = 1, #segments do
    local part = segments[s]
    local key = lanes.base .. 'log:' .. part.name
    call('HSET', key, unpack(part.bodies))
    call('RPUSH', key .. ':order', unpack(part.order))
    call('HINCRBY', KEYS[15], part.name, part.bytes)
  end
  for t = 1, topics do
    if by_topic[t].count > 0 then call('HINCRBY', KEYS[16 + t], 'counter', by_topic[t].count) end
  end
  call('HINCRBY', KEYS[9], 'events.published', accepted)
  for s = 1, subs do
    local sub = subscribers[s]
    for i = 1, #sub.numbers do
      local bucket = sub.buckets[sub.numbers[i]]
      lanes.append(sub.states[i], bucket.items, bucket.sizes, now, new_bid)
    end
    lanes.counted(sub)
  end
  for q = 1, with_queues do
    local queue = queues[q]
    for _, env in ipairs(queue.envs) do
      local push = queue.pushes[env]
      facets.push(queue, queue.facets[env], push.items, push.weight)
      facets.add(queue, 'pushed', #push.items)
    end
    facets.finish(queue)
  end
  local puts, put_of, known_of = {}, {}, {}
  for g = 1, count do
    local group = groups[g]
    if group.new then
      if group.state ~= '' then call('SET', lanes.objects .. group.object .. ':data', group.state) end
      if group.change then labels.write(group.change, group[1] and tonumber(group[1].id) or 0) end
      if group.diverted then
        local put = put_of[group.object]
        if not put then
          put = { object = group.object, backend = group.memory.backend, entries = {}, queued = group.memory.queued }
          put_of[group.object] = put
          puts[#puts + 1] = put
        end
        for i = 1, #group do table.insert(put.entries, group[i].entry) end
      else
        for i = 1, #group do call('PUBLISH', group[i].channel, group[i].entry) end
      end
    end
    if group.known then
      local of = known_of[group.client]
      if not of then
        of = { fields = {}, ages = {}, n = 0 }
        known_of[group.client] = of
      end
      local n = 2 * of.n
      of.fields[n + 1], of.fields[n + 2] = group.digest, group.known
      of.ages[n + 1], of.ages[n + 2] = fmt('%.0f', now), group.digest
      of.n = of.n + 1
    end
  end
  for client, of in pairs(known_of) do
    local keys, ages = KEYS[16 + topics + 2 * client - 1], KEYS[16 + topics + 2 * client]
    call('HSET', keys, unpack(of.fields))
    call('ZADD', ages, unpack(of.ages))
    -- Two leave for each that comes, so the set shrinks to its limit without ever taking long.
    local past = fmt('%.0f', now - tonumber(ARGV[10]))
    local old = call('ZRANGE', ages, '-inf', past, 'BYSCORE', 'LIMIT', 0, 2 * of.n)
    if #old == 0 then
      local over = call('ZCARD', ages) - tonumber(ARGV[9])
      if over > 0 then old = call('ZRANGE', ages, 0, math.min(2 * of.n, over + 1) - 1) end
    end
    if #old > 0 then
      call('HDEL', keys, unpack(old))
      call('ZREM', ages, unpack(old))
    end
    call('PEXPIRE', keys, 2 * tonumber(ARGV[10]))
    call('PEXPIRE', ages, 2 * tonumber(ARGV[10]))
  end
  lanes.finish()
  if #puts > 0 then objects.enqueue(puts) end
  if objects then objects.finish() end
  if labels then labels.finish() end
  return answer
end
