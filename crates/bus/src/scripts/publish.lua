-- Accepts events: numbers them, stores each body once, appends them to the batches of their subscribers and to the
-- slices of their queues, and publishes them live. Events arrive in groups: the events of one object, with the
-- object's new state if it changes. A group is accepted as a whole, or it is a repeat, or it is rejected. A call is
-- carried out as a whole, or not at all. Events of an object that has a backend go to the object's queue and nowhere
-- else.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, the registry of this shard
-- KEYS[11]: string, the last call of this pacemaker: its sequence and reply
-- KEYS[12]: string, the last id given out in this shard
-- KEYS[13]: hash, object -> its last id, then each topic it had events of with the last id of both
-- KEYS[14]: hash, the same, of objects without recent events
-- KEYS[15]: hash, segment of the log -> bytes
-- KEYS[16]: hash, `exchanged_at`: when the two hashes of objects were last exchanged; `logged`: the last id in the
-- log, while a later one went to a backend; `full`: until when and for which tenants memory is too short
-- KEYS[17]: hash, client -> how many idempotency keys it uses and when that was counted, if these are many
-- KEYS[18...]: hash, a topic's counter, for each topic; then two for each client: hash, idempotency key
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
-- ARGV[9]: integer, maximum number of idempotency keys of a client; further ones are rejected until some expire
-- ARGV[10]: integer, ms to remember them
-- ARGV[11]: integer, number of subscribers
-- ARGV[12]: integer, number of topics
-- ARGV[13]: integer, number of clients
-- ARGV[14]: integer, number of groups
-- ARGV[15]: integer, number of queues
-- ARGV[16]: integer, maximum number of events in the queue of one object
-- ARGV[17]: integer, 1 when groups bring changes of labels, else 0
-- ARGV[18]: integer, sequence of the last call of this pacemaker that was acknowledged, 0 if none is known
-- ARGV[19]: integer, maximum bytes that are stored for a tenant, 0 for no limit
-- ARGV[20...]: for each subscriber token, generation, concurrency, maximum events of a batch, timeout in ms; for each
-- topic its name, the number of its subscribers and their places in the list before; for each client its name; for each
-- queue how many messages
-- of a slice may be in flight, 0 for no limit, and if it is bounded `:max:slice_max:drop` (see slices.bound); for each
-- group its object, the object's hash, the client's place or `client digest body` (with the digest of the idempotency key and
-- the digest of the content), the object's new state, `null` to remove it or nothing, the object's backend
-- or nothing, the
-- number of its events, and for each of these the topic's place (0 for none: a message), the live channel, the rest of
-- its JSON and, if there are queues, `place:weight` for each queue that takes it, each with `:rules` if the slice has
-- rules (see slices.lua), and before them, if it is delayed, `@` with unix ms or `@+` with ms from now;
-- then, with ARGV[17], the change of a label that belongs to the group, as labels.lua reads it. A group with such a change
-- may have no events
-- Returns `ok` and three words for each event: id, prev or `-`, tprev or `-`; within a group ids follow each other by
-- 64. Or three words for a group: `r`, its first id, `-` for a repeat under its key; `c`, `-`, `-` for something else
-- under the key; `f`, `-`, `-` when the object's queue is full; `q`, `-`, `-` for a message when a pull queue is full; `e`,
-- `-`, `-` when its tenant stores too many bytes; `m`, `-`, `-` when memory is short and its tenant or its client uses most; `k`,
-- ms, `-` when its client has no key left, and in how many ms its oldest one expires; `x`, `-`, `-`
-- when the label is not as its change expects it; `n`, `-`, `-` for a change without events. Or one word, when nothing
-- was done: `stale` (the registry has another stamp), `empty` (the registry does not exist), `late` (a later call of
-- this pacemaker arrived first). Or `lost` and a sequence, when nothing was done: that is the last one that this server
-- knows, and it is older than ARGV[18]
-- Caller: Store::publish

-- The shards together have 6,400 ids per ms since this time (unix ms); consecutive ids of one shard differ by 64.
local EPOCH = 1704067200000
-- Ten seconds of ids, which is the span of one segment of the log.
local LOG_SEGMENT = 64000000
-- More topics than an object usually has. Beyond this number, its earliest topics are forgotten.
local MAX_TOPICS_OF_OBJECT = 100
-- How long a reply is kept for a repeat of its call, ms.
local REPLY_MS = '600000'

-- Lua's own conversion writes 1.7e+15, but ids and times must keep every digit.
local function digits(number)
  -- Twice as fast as `%.0f`, and exact below 2^53 even where integers have 32 bits.
  if number < 10000000 then return string.format('%d', number) end
  local high = math.floor(number / 10000000)
  return string.format('%d%07d', high, number - high * 10000000)
end

-- Part 1, the arguments. No other part indexes KEYS or ARGV. Part 2b is in
-- publish_quota.lua, and parts 3 and 4 are in publish_decide.lua and publish_write.lua, which are appended.

-- The fixed keys and arguments by name.
local keys = {
  counters = KEYS[9], registry = KEYS[10], last_call = KEYS[11], last_id = KEYS[12], objects = KEYS[13],
  old_objects = KEYS[14], log = KEYS[15], state = KEYS[16], used_keys = KEYS[17],
}
local args = {
  now = ARGV[1], stamp = ARGV[2], sequence = ARGV[3], shard = tonumber(ARGV[4]), seed = ARGV[5],
  batch_bytes = tonumber(ARGV[6]), max_objects = tonumber(ARGV[7]), object_ms = tonumber(ARGV[8]),
  max_keys = tonumber(ARGV[9]), key_ms = tonumber(ARGV[10]), max_object_events = tonumber(ARGV[16]),
  with_queues = ARGV[15] ~= '0', with_changes = ARGV[17] == '1', acknowledged = tonumber(ARGV[18]),
  tenant_bytes = tonumber(ARGV[19]),
}

-- `topics` is the number of this call's topics that a subscriber has.
local function read_subscribers(at, count)
  local words, subscribers = ARGV, {}
  for s = 1, count do
    subscribers[s] = {
      token = words[at], generation = words[at + 1], concurrency = tonumber(words[at + 2]),
      max = tonumber(words[at + 3]), timeout = tonumber(words[at + 4]), bytes = args.batch_bytes,
      division = false, topics = 0, states = false,
    }
    at = at + 5
  end
  return subscribers, at
end

-- Determines which subscribers of a topic divide its events into the same lanes: those with the same number of lanes,
-- and with no other topic in this call. They share one division, so that an event is not divided for each of them. A
-- division has the events of each lane in `buckets`, and the lanes with events in `numbers`.
local function divide(topic)
  local by_concurrency, divisions = {}, {}
  for i = 1, #topic do
    local sub = topic[i]
    local alone = sub.topics == 1
    local division = sub.division or alone and by_concurrency[sub.concurrency]
    if not division then
      division = { concurrency = sub.concurrency, buckets = {}, numbers = {} }
      divisions[#divisions + 1] = division
      if alone then by_concurrency[sub.concurrency] = division end
    elseif not alone then
      divisions[#divisions + 1] = division
    end
    sub.division = division
  end
  topic.divisions = divisions
end

-- A topic is the array of its subscribers. `own` is whether its events are Signalbox's own.
local function read_topics(at, count, subscribers)
  local words, topics = ARGV, {}
  for t = 1, count do
    local own = string.find(words[at], 'signalbox.', 1, true) == 1
    local topic = { name = words[at], key = KEYS[17 + t], count = 0, own = own }
    local n = tonumber(words[at + 1])
    at = at + 1
    for i = 1, n do
      local sub = subscribers[tonumber(words[at + i])]
      topic[i], sub.topics = sub, sub.topics + 1
    end
    at = at + 1 + n
    topics[t] = topic
  end
  for t = 1, count do divide(topics[t]) end
  return topics, at
end

-- If a client uses idempotency keys (`keyed`), `published` has what this call publishes under each digest, `fields` and
-- `times` are the values that are written, and `used` is the number of keys that have not expired, with those of this call.
local function read_clients(at, first, count)
  local clients = {}
  for c = 1, count do
    clients[c] = {
      name = ARGV[at + c - 1], keyed = false,
      bodies = KEYS[first + 2 * c - 1], ages = KEYS[first + 2 * c], published = {},
      fields = {}, times = {}, used = false, wait = false,
    }
  end
  return clients, at + count
end

-- `pushes` has the messages for each slice, and `tenants` the slices in their order.
local function read_queues(at, first, count, slices)
  local queues = {}
  for q = 1, count do
    local limit, max, slice_max, drop = string.match(ARGV[at], '^(%d+):?(%d*):?(%d*):?(%d*)$')
    local queue = slices.open(KEYS[first + 1], KEYS[first + 2], KEYS[first + 2 + q], tonumber(limit))
    if max ~= '' then slices.bound(queue, max, slice_max, drop) end
    queue.pushes, queue.tenants = {}, {}
    queues[q], queues.bounded = queue, queues.bounded or queue.bounded
    at = at + 1
  end
  return queues, at
end

-- A group is the array of its events. `to` is their destination if the group is accepted: `log` or `backend`. Fields
-- that are filled in later are created here, because a table that grows is slower.
local function read_groups(at, count, topics, clients, labels)
  local words, groups, width = ARGV, {}, args.with_queues and 4 or 3
  for g = 1, count do
    local key, n = words[at + 2], tonumber(words[at + 5])
    local group = {
      object = words[at], hash = tonumber(words[at + 1]), state = words[at + 3], backend = words[at + 4],
      memory = false, to = false, client = clients[tonumber(key)], digest = false,
    }
    if not group.client then
      local client
      client, group.digest, group.body = string.match(key, '^(%d+) (%S+) (%S+)$')
      group.client = clients[tonumber(client)]
      group.client.keyed = true
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

-- Reads the lists, in the order of the header. `slices` is needed if there are queues, and `labels` if there are
-- changes.
local function read_lists(slices, labels)
  local topic_count, client_count = tonumber(ARGV[12]), tonumber(ARGV[13])
  local first_client = 17 + topic_count
  local subscribers, at = read_subscribers(20, tonumber(ARGV[11]))
  local topics, clients, queues
  topics, at = read_topics(at, topic_count, subscribers)
  clients, at = read_clients(at, first_client, client_count)
  queues, at = read_queues(at, first_client + 2 * client_count, tonumber(ARGV[15]), slices)
  return subscribers, topics, clients, queues, read_groups(at, tonumber(ARGV[14]), topics, clients, labels)
end

-- Part 2, the reads. All of them precede the first write. A key that is written without being read is checked for its
-- type.

-- The reply to a call that is not executed: a repeat, a late one, one that follows calls which this server lost, or one
-- that was computed from another registry. Nil for a call that is executed.
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
  lanes.expect('hash', keys.objects, keys.old_objects, keys.log, keys.state, lanes.base .. 'environments',
    lanes.base .. 'environments:clients', lanes.base .. 'states')
  for t = 1, #topics do lanes.expect('hash', topics[t].key) end
end

-- Checks the keys that depend on the accepted events.
local function expect_touched(lanes, slices, log, clients, queues)
  for s = 1, #log do
    lanes.expect('hash', log[s].key)
    lanes.expect('list', log[s].order_key)
    lanes.expect('hash', log[s].key .. ':environments', log[s].held_key)
  end
  for c = 1, #clients do
    if clients[c].keyed then
      lanes.expect('hash', keys.used_keys, clients[c].bodies)
      lanes.expect('zset', clients[c].ages)
    end
  end
  for q = 1, #queues do
    local queue = queues[q]
    slices.expect('zset', queue.ring, queue.index, queue.depths)
    slices.expect('hash', queue.count, queue.held)
    if queue.delays then
      slices.expect('hash', queue.later)
      slices.expect('zset', queue.delayed, queue.due)
    end
    for i = 1, #queue.tenants do slices.load(queue, queue.tenants[i]) end
    if queue.bounded then
      slices.expect('hash', queue.gaps, queue.later)
      slices.expect('zset', queue.delayed)
      slices.plan_drops(queue)
    end
  end
end

-- The memory of a group that changes a label. The pacemaker knows the label's last event from the label's record, which
-- is as it expects if the group is accepted. A label's object has events of one topic only, and no backend.
local function label_memory(change)
  return { id = change.prev, of_label = true, changed = false }
end

-- Whether a group is a message that no queue takes. Nothing depends on the ids of its object.
local function is_unmatched(group)
  local event = group[1]
  return event and not event.topic and event.queues == ''
end

-- Assigns to each group the memory of its object. Returns the names of the objects whose memories are stored, these
-- memories by name, and whether any object has a backend.
local function collect(groups)
  local names, memories, with_backends = {}, {}, false
  for g = 1, #groups do
    local group = groups[g]
    local object = group.object
    local memory = memories[object]
    if group.change then
      memory = label_memory(group.change)
    elseif is_unmatched(group) then
      memory = { id = false, topics = {}, order = {}, changed = false }
    end
    if not memory then
      memory = { id = false, topics = {}, order = {}, changed = false }
      memories[object] = memory
      names[#names + 1] = object
    end
    if group.backend ~= '' and not group.change then
      memory.backend = group.backend
      with_backends = true
    end
    group.memory = memory
  end
  return names, memories, with_backends
end

-- Fills the memories of `names` with the values `found`. Returns the names without a value. A memory is one field, `id
-- topic id topic id`, because the cost of reading and writing grows with the number of fields.
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

-- Reads all memories in one call, then the missing ones from the older hash.
local function read_memories(names, memories)
  if #names == 0 then return end
  local missing = fill(memories, names, lists.read('HMGET', keys.objects, names))
  if #missing > 0 and redis.call('HLEN', keys.old_objects) > 0 then
    fill(memories, missing, lists.read('HMGET', keys.old_objects, missing))
  end
end

-- Reads the backends of objects, and how many more events each queue may take. An object with waiting events keeps its
-- backend until they are sent, even if its name belongs to another one now, so that no event overtakes them.
local function read_backends(objects, queued_key, names, memories)
  local backends, with_one = lists.read('HMGET', queued_key, names), {}
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
  -- A leased object has one event in flight, which is part of the count.
  local leased = lists.read('ZMSCORE', objects.key('leases'), with_one)
  for i = 1, #with_one do
    local waiting = redis.call('LLEN', objects.of(with_one[i], 'events')) + (leased[i] and 1 or 0)
    memories[with_one[i]].free = args.max_object_events - waiting
  end
end

-- Opens the queues of objects, if any object of the call has a backend or any object of the shard has waiting events.
local function open_backends(lanes, open_objects, names, memories, with_backends)
  local queued_key = lanes.objects .. 'queued'
  if #names == 0 or not with_backends and redis.call('EXISTS', queued_key) == 0 then return nil end
  local objects = open_objects()
  objects.at(lanes.objects)
  read_backends(objects, queued_key, names, memories)
  return objects
end
