-- Accepts events: numbers them, stores each body once, appends them to the batches of their subscribers and to the
-- facets of their queues, and publishes them live. Events arrive in groups: the events of one object, with the
-- object's new state if it changes. A group is accepted as a whole, or it is a repeat, or it is rejected. A call is
-- carried out as a whole, or not at all. Events of an object that has a backend go to the object's queue and nowhere
-- else.
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
-- KEYS[14]: hash, the same, of objects without recent events
-- KEYS[15]: hash, segment of the log -> bytes
-- KEYS[16]: hash, `exchanged_at`: when the two hashes of objects were last exchanged; `logged`: the last id in the
-- log, while a later one went to a backend
-- KEYS[17...]: hash, a topic's counter, for each topic; then two for each client with idempotency keys: hash, key
-- digest -> the publish under it; zset, key digest -> when; then, if there are queues: hash, messages of queues
-- by segment of the log; zset, queues by when they have something due; zset, the ring of each queue
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp that the fan-out below was computed from
-- ARGV[3]: integer, sequence of this call, higher than that of every earlier one
-- ARGV[4]: integer, number of the shard
-- ARGV[5]: string, sixteen random characters
-- ARGV[6]: integer, maximum bytes of a batch
-- ARGV[7]: integer, maximum number of objects to remember
-- ARGV[8]: integer, ms to remember them
-- ARGV[9]: integer, maximum number of idempotency keys to remember for a client
-- ARGV[10]: integer, ms to remember them
-- ARGV[11]: integer, number of subscribers
-- ARGV[12]: integer, number of topics
-- ARGV[13]: integer, number of clients with idempotency keys
-- ARGV[14]: integer, number of groups
-- ARGV[15]: integer, number of queues
-- ARGV[16]: integer, maximum number of events in the queue of one object
-- ARGV[17]: integer, 1 when groups bring changes of labels, else 0
-- ARGV[18]: integer, sequence of the last call of this pacemaker that was acknowledged, 0 if none is known
-- ARGV[19...]: for each subscriber token, generation, concurrency, maximum events of a batch, timeout in ms; for each
-- topic its name, the number of its subscribers and their places in the list before; for each queue how many messages
-- of a facet may be in flight, 0 for no limit, and if it is bounded `:max:facet_max:drop` (see facets.bound); for each
-- group its object, the object's hash, either nothing or `client digest body` (the client's place, the digest of the
-- idempotency key, the digest of the content), the object's new state or nothing, the object's backend or nothing, the
-- number of its events, and for each of these the topic's place (0 for none: a message), the live channel, the rest of
-- its JSON and, if there are queues, `place:weight` for each queue that takes it, each with `:rules` if the facet has
-- rules (see facets.lua), and before them, if it is delayed, `@` with unix ms or `@+` with ms from now;
-- then, with ARGV[17], the change of a label that belongs to the group, as labels.lua reads it. A group with such a change
-- may have no events
-- Returns `ok` and three words for each event: id, prev or `-`, tprev or `-`; within a group ids follow each other by
-- 64. Or three words for a group: `r`, its first id, `-` for a repeat under its key; `c`, `-`, `-` for something else
-- under the key; `f`, `-`, `-` when the object's queue is full; `q`, `-`, `-` when a pull queue is full; `x`, `-`, `-`
-- when the label is not as its change expects it; `n`, `-`, `-` for a change without events. Or one word, when nothing
-- was done: `stale` (the registry has another stamp), `empty` (the registry does not exist), `late` (a later call of
-- this pacemaker arrived first). Or `lost` and a sequence, when nothing was done: that is the last one that this server
-- knows, and it is older than ARGV[18]
-- Caller: Store::publish

-- Ids are 6,400 for each ms since this time (unix ms), and those of one shard follow each other by 64.
local EPOCH = 1704067200000
-- Ten seconds of ids: the span of one segment of the log.
local LOG_SEGMENT = 64000000
-- More topics than an object usually has. Beyond it, the topics that it had first are forgotten.
local MAX_TOPICS_OF_OBJECT = 100
-- How long a reply is kept for a repeat of its call, ms.
local REPLY_MS = '600000'

-- Lua's own conversion writes 1.7e+15; ids and times must keep every digit.
local function digits(number)
  return string.format('%.0f', number)
end

-- Part 1, the arguments. No other part indexes KEYS or ARGV.

-- The fixed keys and arguments by name.
local keys = {
  counters = KEYS[9], registry = KEYS[10], last_call = KEYS[11], last_id = KEYS[12], objects = KEYS[13],
  old_objects = KEYS[14], log = KEYS[15], state = KEYS[16],
}
local args = {
  now = ARGV[1], stamp = ARGV[2], sequence = ARGV[3], shard = tonumber(ARGV[4]), seed = ARGV[5],
  batch_bytes = tonumber(ARGV[6]), max_objects = tonumber(ARGV[7]), object_ms = tonumber(ARGV[8]),
  max_keys = tonumber(ARGV[9]), key_ms = tonumber(ARGV[10]), max_object_events = tonumber(ARGV[16]),
  with_queues = ARGV[15] ~= '0', with_changes = ARGV[17] == '1', acknowledged = tonumber(ARGV[18]),
}

-- `buckets` collects the events of each lane, and `numbers` the lanes that have some.
local function read_subscribers(at, count)
  local words, subscribers = ARGV, {}
  for s = 1, count do
    subscribers[s] = {
      token = words[at], generation = words[at + 1], concurrency = tonumber(words[at + 2]),
      max = tonumber(words[at + 3]), timeout = tonumber(words[at + 4]), bytes = args.batch_bytes,
      buckets = {}, numbers = {}, states = false,
    }
    at = at + 5
  end
  return subscribers, at
end

-- A topic is the array of its subscribers.
local function read_topics(at, count, subscribers)
  local words, topics = ARGV, {}
  for t = 1, count do
    local topic = { name = words[at], key = KEYS[16 + t], count = 0 }
    local n = tonumber(words[at + 1])
    at = at + 1
    for i = 1, n do topic[i] = subscribers[tonumber(words[at + i])] end
    at = at + 1 + n
    topics[t] = topic
  end
  return topics, at
end

-- `published` has what this call publishes under each digest; `fields` and `times` are what is written of it.
local function read_clients(first, count)
  local clients = {}
  for c = 1, count do
    clients[c] = {
      bodies = KEYS[first + 2 * c - 1], ages = KEYS[first + 2 * c], published = {}, fields = {}, times = {},
    }
  end
  return clients
end

-- `pushes` has what is pushed to each facet, and `envs` the facets in their order.
local function read_queues(at, first, count, facets)
  local queues = {}
  for q = 1, count do
    local limit, max, facet_max, drop = string.match(ARGV[at], '^(%d+):?(%d*):?(%d*):?(%d*)$')
    local queue = facets.open(KEYS[first + 1], KEYS[first + 2], KEYS[first + 2 + q], tonumber(limit))
    if max ~= '' then facets.bound(queue, max, facet_max, drop) end
    queue.pushes, queue.envs = {}, {}
    queues[q], queues.bounded = queue, queues.bounded or queue.bounded
    at = at + 1
  end
  return queues, at
end

-- A group is the array of its events. `to` is where they go when it is accepted: `log` or `backend`. Fields that are
-- filled in later are made here: a table that grows is slower.
local function read_groups(at, count, topics, clients, labels)
  local words, groups, width = ARGV, {}, args.with_queues and 4 or 3
  for g = 1, count do
    local key, n = words[at + 2], tonumber(words[at + 5])
    local group = {
      object = words[at], hash = tonumber(words[at + 1]), state = words[at + 3], backend = words[at + 4],
      memory = false, to = false,
    }
    if key ~= '' then
      local client
      client, group.digest, group.body = string.match(key, '^(%d+) (%S+) (%S+)$')
      group.client = clients[tonumber(client)]
    end
    at = at + 6
    for i = 1, n do
      group[i] = {
        topic = topics[tonumber(words[at])], channel = words[at + 1], rest = words[at + 2],
        queues = args.with_queues and words[at + 3] or '', id = false, entry = false,
      }
      at = at + width
    end
    if labels then group.change, at = labels.read(at, group.object) end
    groups[g] = group
  end
  return groups
end

-- Reads the lists, in the order of the header. `facets` is needed if there are queues, and `labels` if there are
-- changes.
local function read_lists(facets, labels)
  local topic_count, client_count = tonumber(ARGV[12]), tonumber(ARGV[13])
  local first_client = 16 + topic_count
  local subscribers, at = read_subscribers(19, tonumber(ARGV[11]))
  local topics, clients, queues
  topics, at = read_topics(at, topic_count, subscribers)
  clients = read_clients(first_client, client_count)
  queues, at = read_queues(at, first_client + 2 * client_count, tonumber(ARGV[15]), facets)
  return subscribers, topics, clients, queues, read_groups(at, tonumber(ARGV[14]), topics, clients, labels)
end

-- Part 2, the reads. All of them come before the first write, and a key that is written without being read is checked
-- for its type.

-- The reply to a call that is not executed: a repeat, a late one, one after calls that this server lost, or one that was
-- made for another registry. Nil for a call that is executed.
local function early_reply()
  local saved, last = redis.call('GET', keys.last_call), 0
  if saved then
    local space, this_one = string.find(saved, ' ', 1, true), tonumber(args.sequence)
    last = tonumber(string.sub(saved, 1, space - 1))
    if last == this_one then return string.sub(saved, space + 1) end
    if last > this_one then return 'late' end
  end
  local current = redis.call('HGET', keys.registry, 'stamp')
  if not current then return 'empty' end
  if current ~= args.stamp then return 'stale' end
  if last < args.acknowledged then return 'lost ' .. digits(last) end
end

-- Checks the keys that every call writes to.
local function expect_fixed(lanes, topics)
  lanes.expect_own()
  lanes.expect('hash', keys.objects, keys.old_objects, keys.log, keys.state)
  for t = 1, #topics do lanes.expect('hash', topics[t].key) end
end

-- Checks the keys that depend on the accepted events.
local function expect_touched(lanes, facets, log, clients, queues)
  for s = 1, #log do
    lanes.expect('hash', log[s].key)
    lanes.expect('list', log[s].order_key)
  end
  for c = 1, #clients do
    lanes.expect('hash', clients[c].bodies)
    lanes.expect('zset', clients[c].ages)
  end
  for q = 1, #queues do
    local queue = queues[q]
    facets.expect('zset', queue.ring, queue.index)
    facets.expect('hash', queue.count, queue.held)
    if queue.delays then
      facets.expect('hash', queue.later)
      facets.expect('zset', queue.delayed, queue.due)
    end
    if queue.bounded then facets.expect('hash', queue.gaps) end
    for i = 1, #queue.envs do facets.load(queue, queue.envs[i]) end
  end
end

-- Gives each group the memory of its object. Returns the names of the objects, the memories by name, and whether any
-- object has a backend.
local function collect(groups)
  local names, memories, with_backends = {}, {}, false
  for g = 1, #groups do
    local group = groups[g]
    local object = group.object
    local memory = memories[object]
    if not memory then
      memory = { id = false, topics = {}, order = {}, changed = false }
      memories[object] = memory
      names[#names + 1] = object
    end
    if group.backend ~= '' then
      memory.backend = group.backend
      with_backends = true
    end
    group.memory = memory
  end
  return names, memories, with_backends
end

-- Fills the memories of `names` with the values `found`. Returns the names without any. A memory is one field,
-- `id topic id topic id`, because the cost of such a read or write grows with the number of fields.
local function fill(memories, names, found)
  local missing = {}
  for i = 1, #names do
    local saved, memory = found[i], memories[names[i]]
    if saved then
      local topics, order = memory.topics, memory.order
      -- An object that had only messages has no topics.
      memory.id = string.match(saved, '^%d+')
      for topic, id in string.gmatch(saved, ' (%S+) (%d+)') do
        topics[topic], order[#order + 1] = id, topic
      end
    else
      missing[#missing + 1] = names[i]
    end
  end
  return missing
end

-- Reads all memories in one call, then those not found, from the older hash.
local function read_memories(names, memories)
  local missing = fill(memories, names, redis.call('HMGET', keys.objects, unpack(names)))
  if #missing > 0 and redis.call('HLEN', keys.old_objects) > 0 then
    fill(memories, missing, redis.call('HMGET', keys.old_objects, unpack(missing)))
  end
end

-- Reads where objects have their queues, and how many more events each queue may take. An object with waiting events
-- keeps its backend until they are sent, even if its name belongs to another one now, so that no event overtakes them.
local function read_backends(objects, queued_key, names, memories)
  local backends, with_one = redis.call('HMGET', queued_key, unpack(names)), {}
  for i = 1, #names do
    local memory = memories[names[i]]
    memory.queued = backends[i] and true or false
    memory.backend = backends[i] or memory.backend
    if memory.backend then
      with_one[#with_one + 1] = names[i]
      objects.expect_backend(memory.backend)
    end
  end
  if #with_one == 0 then return end
  objects.expect('hash', 'numbers')
  -- A leased object has one event in flight, which is included in the count.
  local leased = redis.call('ZMSCORE', objects.key('leases'), unpack(with_one))
  for i = 1, #with_one do
    local waiting = redis.call('LLEN', objects.of(with_one[i], 'events')) + (leased[i] and 1 or 0)
    memories[with_one[i]].free = args.max_object_events - waiting
  end
end

-- Opens the queues of objects, if any object of the call has a backend or any object of the shard has waiting events.
local function open_backends(lanes, open_objects, names, memories, with_backends)
  local queued_key = lanes.objects .. 'queued'
  if not with_backends and redis.call('EXISTS', queued_key) == 0 then return nil end
  local objects = open_objects()
  objects.at(lanes.objects)
  read_backends(objects, queued_key, names, memories)
  return objects
end

-- Part 3, the decisions. Events get their ids and are sorted by where they go.

-- Adds three words to the reply.
local function say(reply, first, second, third)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = first, second, third
end

-- Gives an event its id and the ids before it, in its JSON (`entry`) and in the reply. A stream detects by `last` that
-- it missed an event, so `last` is an id that is in the log, and not one that went to a backend.
local function number(event, memory, ids, reply)
  local last = math.max(ids.last + 64, ids.lowest)
  local id, topic, prev, tprev = digits(last), event.topic, memory.id, nil
  ids.last, ids.last_text, ids.accepted = last, id, ids.accepted + 1
  memory.id, memory.changed = id, true
  if topic then
    local name = topic.name
    tprev = memory.topics[name]
    if not tprev then memory.order[#memory.order + 1] = name end
    memory.topics[name] = id
    topic.count = topic.count + 1
  end
  local head = '{"id":' .. id
  if prev then head = head .. ',"prev":' .. prev end
  if tprev then head = head .. ',"tprev":' .. tprev end
  event.id, event.entry = id, head .. ',"last":' .. ids.logged .. ',' .. event.rest
  say(reply, id, prev or '-', tprev or '-')
end

-- Gives an event its place in the log, which is an array of segments. Returns the segment.
local function put_in_log(log, event, id, base)
  local at, size = math.floor(id / LOG_SEGMENT), #event.entry
  local segment = log[#log]
  if not segment or segment.number ~= at then
    local name = digits(at)
    local key = base .. 'log:' .. name
    segment = {
      number = at, name = name, key = key, order_key = key .. ':order', bytes = size,
      bodies = { event.id, event.entry }, order = { event.id },
    }
    log[#log + 1] = segment
    return segment
  end
  local bodies, order = segment.bodies, segment.order
  local n = #order
  order[n + 1] = event.id
  bodies[2 * n + 1], bodies[2 * n + 2] = event.id, event.entry
  segment.bytes = segment.bytes + size
  return segment
end

-- Gives an event its places in the lanes of its topic's subscribers.
local function put_in_lanes(topic, id, size, hash)
  for s = 1, #topic do
    local sub = topic[s]
    local lane = hash % sub.concurrency
    local bucket = sub.buckets[lane]
    if bucket then
      local n = bucket.n + 1
      bucket.items[n], bucket.sizes[n], bucket.n = id, size, n
    else
      sub.buckets[lane] = { items = { id }, sizes = { size }, n = 1 }
      sub.numbers[#sub.numbers + 1] = lane
    end
  end
end

-- The environment of an event: the first part of its live channel.
local function environment_of(event)
  return string.match(event.channel, '^[^:]*')
end

-- When an event may be delivered for the first time, if that is later than now.
local function due_of(event, now)
  if string.byte(event.queues) ~= 64 then return nil end
  local plus, ms = string.match(event.queues, '^@(%+?)(%d+)')
  local due = tonumber(ms) + (plus == '+' and now or 0)
  return due > now and due
end

-- Gives an event its places in queues, each in the facet of its environment.
local function put_in_queues(facets, queues, event, segment, now)
  local env, due = environment_of(event), due_of(event, now)
  for place, weight, rules in string.gmatch(event.queues, '(%d+):(%d+):?(%S*)') do
    local queue = queues[tonumber(place)]
    local push = queue.pushes[env]
    if not push then
      push = { items = {}, later = {}, weight = tonumber(weight), rules = rules }
      queue.pushes[env] = push
      queue.envs[#queue.envs + 1] = env
      if rules ~= '' then facets.expect('zset', queue.throttled) end
    end
    facets.plan(queue, env)
    if due then
      queue.delays = true
      push.later[#push.later + 1] = { id = event.id, entry = event.entry, due = due }
    else
      push.items[#push.items + 1] = event.id
      facets.hold(queue, segment.name, 1)
    end
  end
end

-- Whether the bounded queues of a group have space for it. News of Signalbox itself are never rejected: the oldest
-- messages are dropped instead.
local function fits_queues(group, facets, queues)
  if group.change then return true end
  local needed = {}
  for i = 1, #group do
    local event = group[i]
    if event.queues ~= '' and not (event.topic and string.find(event.topic.name, 'signalbox.', 1, true) == 1) then
      local env = environment_of(event)
      for place in string.gmatch(event.queues, '(%d+):%d+%S*') do
        local name = place .. ':' .. env
        needed[name] = (needed[name] or 0) + 1
        if not facets.fits(queues[tonumber(place)], env, needed[name]) then return false end
      end
    end
  end
  return true
end

-- The result of an earlier publish under the group's idempotency key: `r` and the first ID for the same content, `c`
-- for other content, nil if there was none.
local function published_before(group, now)
  local client = group.client
  local known = client.published[group.digest] or redis.call('HGET', client.bodies, group.digest)
  if not known then return nil end
  local body, id, time = string.match(known, '^(%S+) (%d+) (%d+)$')
  if tonumber(time) + args.key_ms <= now then return nil end
  if body ~= group.body then return 'c' end
  return 'r', id
end

-- Notes what is published under the group's idempotency key.
local function note_key(group, now)
  local client, time = group.client, digits(now)
  local known = group.body .. ' ' .. group[1].id .. ' ' .. time
  local fields, times, n = client.fields, client.times, #client.fields
  client.published[group.digest] = known
  fields[n + 1], fields[n + 2] = group.digest, known
  times[n + 1], times[n + 2] = time, group.digest
end

-- The first two words of the reply to a group that is not accepted; nil for one that is.
local function refusal(group, now, to, labels, facets, queues)
  if group.client then
    local word, id = published_before(group, now)
    if word then return word, id end
  end
  if to == 'backend' and #group > group.memory.free then return 'f' end
  if to == 'log' and queues.bounded and not fits_queues(group, facets, queues) then return 'q' end
  if group.change and not labels.fits(group.change) then return 'x' end
end

-- Numbers the events of an accepted group and gives them their places.
local function accept(group, ids, log, base, facets, queues, reply, now)
  local memory, to_log = group.memory, group.to == 'log'
  for i = 1, #group do
    local event = group[i]
    number(event, memory, ids, reply)
    if to_log then
      ids.logged = event.id
      local segment = put_in_log(log, event, ids.last, base)
      if event.topic then put_in_lanes(event.topic, event.id, #event.entry, group.hash) end
      if event.queues ~= '' then put_in_queues(facets, queues, event, segment, now) end
    end
  end
  if not to_log then memory.free = memory.free - #group end
  if #group == 0 then say(reply, 'n', '-', '-') end
end

-- Decides about all groups, in their order. Returns the log's new segments, the reply, and whether a label changes.
local function decide(groups, now, ids, base, facets, queues, labels)
  local log, reply, changes = {}, { 'ok' }, false
  for g = 1, #groups do
    local group = groups[g]
    -- A message (it has no topic) is for queues, whether its object has a backend or not.
    local to = group.memory.backend and group[1] and group[1].topic and 'backend' or 'log'
    local word, id = refusal(group, now, to, labels, facets, queues)
    if word then
      say(reply, word, id or '-', '-')
    else
      group.to = to
      accept(group, ids, log, base, facets, queues, reply, now)
      if group.change then changes = true end
      if group.client then note_key(group, now) end
    end
  end
  return log, table.concat(reply, ' '), changes
end

-- Reads what appending to the batches of each subscriber needs.
local function plan_batches(lanes, subscribers)
  for s = 1, #subscribers do
    local sub = subscribers[s]
    if #sub.numbers > 0 then sub.states = lanes.plan(sub, sub.numbers) end
  end
end

-- Part 4, the writes. From here on, nothing is refused.

-- Writes the labels of a call without new events.
local function write_labels(groups, labels)
  for g = 1, #groups do
    local group = groups[g]
    if group.to and group.change then labels.write(group.change, 0) end
  end
  labels.finish()
end

-- Writes the last id, and the last one in the log if that is another.
local function write_ids(ids, saved_logged)
  redis.call('SET', keys.last_id, ids.last_text)
  if ids.logged ~= ids.last_text then
    redis.call('HSET', keys.state, 'logged', ids.logged)
  elseif saved_logged then
    redis.call('HDEL', keys.state, 'logged')
  end
end

-- An object is remembered for one to two periods: there are two hashes, and the older one is dropped as a whole.
local function exchange_memories(now, exchanged_at, remembered)
  if exchanged_at == 0 then
    redis.call('HSET', keys.state, 'exchanged_at', digits(now))
  elseif remembered > 0 and (remembered >= args.max_objects or now >= exchanged_at + args.object_ms) then
    redis.call('UNLINK', keys.old_objects)
    redis.call('RENAME', keys.objects, keys.old_objects)
    redis.call('HSET', keys.state, 'exchanged_at', digits(now))
  end
end

-- Writes the memories that changed.
local function write_memories(names, memories)
  local fields, n = {}, 0
  for i = 1, #names do
    local memory = memories[names[i]]
    if memory.changed then
      local saved, order, topics = memory.id, memory.order, memory.topics
      for t = math.max(1, #order - MAX_TOPICS_OF_OBJECT + 1), #order do
        saved = saved .. ' ' .. order[t] .. ' ' .. topics[order[t]]
      end
      fields[n + 1], fields[n + 2] = names[i], saved
      n = n + 2
    end
  end
  redis.call('HSET', keys.objects, unpack(fields))
end

-- Stores the bodies, and updates the counters.
local function write_log(log, topics, accepted)
  for s = 1, #log do
    local segment = log[s]
    redis.call('HSET', segment.key, unpack(segment.bodies))
    redis.call('RPUSH', segment.order_key, unpack(segment.order))
    redis.call('HINCRBY', keys.log, segment.name, segment.bytes)
  end
  for t = 1, #topics do
    if topics[t].count > 0 then redis.call('HINCRBY', topics[t].key, 'counter', topics[t].count) end
  end
  redis.call('HINCRBY', keys.counters, 'events.published', accepted)
end

-- Appends events to the batches of subscribers.
local function write_batches(lanes, subscribers, now, new_bid)
  for s = 1, #subscribers do
    local sub = subscribers[s]
    for i = 1, #sub.numbers do
      local bucket = sub.buckets[sub.numbers[i]]
      lanes.append(sub.states[i], bucket.items, bucket.sizes, now, new_bid)
    end
    lanes.counted(sub)
  end
end

-- Pushes messages to the facets of queues.
local function write_queues(facets, queues, now)
  for q = 1, #queues do
    local queue = queues[q]
    for i = 1, #queue.envs do
      local env = queue.envs[i]
      local push, facet = queue.pushes[env], queue.facets[env]
      if #push.items > 0 then facets.push(queue, facet, push.items, push.weight, push.rules) end
      for l = 1, #push.later do
        local later = push.later[l]
        facets.push_later(queue, facet, later.id, later.entry, later.due, push.weight, push.rules)
      end
      facets.keep_bounds(queue, facet, #push.items + #push.later, now)
      facets.add(queue, 'pushed', #push.items + #push.later)
    end
    facets.finish(queue)
  end
end

-- Adds the events of a group to `puts`: an array for `objects.enqueue`, with the place of each object in `by_object`.
local function put_in_backend(puts, group)
  local put = puts.by_object[group.object]
  if not put then
    put = { object = group.object, backend = group.memory.backend, entries = {}, queued = group.memory.queued }
    puts.by_object[group.object] = put
    puts[#puts + 1] = put
  end
  for i = 1, #group do put.entries[#put.entries + 1] = group[i].entry end
end

-- Writes states and labels, and publishes events live. Returns what goes to backends; nil for nothing.
local function write_groups(groups, labels, prefix)
  local puts
  for g = 1, #groups do
    local group = groups[g]
    if group.to then
      if group.state ~= '' then redis.call('SET', prefix .. group.object .. ':data', group.state) end
      if group.change then labels.write(group.change, group[1] and tonumber(group[1].id) or 0) end
      if group.to == 'backend' then
        puts = puts or { by_object = {} }
        put_in_backend(puts, group)
      else
        for i = 1, #group do redis.call('PUBLISH', group[i].channel, group[i].entry) end
      end
    end
  end
  return puts
end

-- Stores the publishes under a client's idempotency keys, and drops old ones: two for each new one, so that the set
-- shrinks to its limit without a long call.
local function write_keys(client, now)
  local bodies, ages, most = client.bodies, client.ages, #client.fields
  if most == 0 then return end
  redis.call('HSET', bodies, unpack(client.fields))
  redis.call('ZADD', ages, unpack(client.times))
  local old = redis.call('ZRANGE', ages, '-inf', digits(now - args.key_ms), 'BYSCORE', 'LIMIT', 0, most)
  if #old == 0 then
    local over = redis.call('ZCARD', ages) - args.max_keys
    if over > 0 then old = redis.call('ZRANGE', ages, 0, math.min(most, over + 1) - 1) end
  end
  if #old > 0 then
    redis.call('HDEL', bodies, unpack(old))
    redis.call('ZREM', ages, unpack(old))
  end
  redis.call('PEXPIRE', bodies, 2 * args.key_ms)
  redis.call('PEXPIRE', ages, 2 * args.key_ms)
end

local function main(lanes, open_facets, open_objects, open_labels)
  local early = early_reply()
  if early then return early end
  local now, new_bid = lanes.now(args.now), lanes.bids(args.seed)
  local facets, labels = args.with_queues and open_facets(), args.with_changes and open_labels(lanes)
  local subscribers, topics, clients, queues, groups = read_lists(facets, labels)

  expect_fixed(lanes, topics)
  local last = redis.call('GET', keys.last_id) or '0'
  local names, memories, with_backends = collect(groups)
  read_memories(names, memories)
  local objects = open_backends(lanes, open_objects, names, memories, with_backends)
  local exchanged_at, logged = unpack(redis.call('HMGET', keys.state, 'exchanged_at', 'logged'))
  local ids = {
    last = tonumber(last), last_text = last, lowest = (now - EPOCH) * 6400 + args.shard,
    logged = logged or last, accepted = 0,
  }
  local log, reply, changes = decide(groups, now, ids, lanes.base, facets, queues, labels)
  plan_batches(lanes, subscribers)
  expect_touched(lanes, facets, log, clients, queues)
  local remembered = redis.call('HLEN', keys.objects)

  -- The first write needs memory: at the memory limit it fails, and nothing is half done.
  redis.call('SET', keys.last_call, args.sequence .. ' ' .. reply, 'PX', REPLY_MS)
  if ids.accepted == 0 then
    if changes then write_labels(groups, labels) end
    return reply
  end
  write_ids(ids, logged)
  exchange_memories(now, tonumber(exchanged_at or 0), remembered)
  write_memories(names, memories)
  write_log(log, topics, ids.accepted)
  write_batches(lanes, subscribers, now, new_bid)
  write_queues(facets, queues, now)
  local puts = write_groups(groups, labels, lanes.objects)
  for c = 1, #clients do write_keys(clients[c], now) end
  lanes.finish()
  if puts then objects.enqueue(puts) end
  if objects then objects.finish() end
  if labels then labels.finish() end
  return reply
end
