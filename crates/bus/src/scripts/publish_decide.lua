
-- Part 3, the decisions. Events get their ids and are sorted by where they go.

-- Adds three words to the reply.
local function say(reply, first, second, third)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = first, second, third
end

-- Assigns an id and the previous ids to an event, in its JSON (`entry`) and in the reply. A stream detects missing
-- events by `last`, so `last` is an id that is in the log, not one that was sent to a backend.
local function number(event, memory, ids, reply)
  local last = math.max(ids.last + 64, ids.lowest)
  local id, topic, prev, tprev = digits(last), event.topic, memory.id, nil
  ids.last, ids.last_text, ids.accepted = last, id, ids.accepted + 1
  memory.id, memory.changed = id, true
  if topic then
    topic.count = topic.count + 1
    if memory.of_label then
      tprev = prev
    else
      local name = topic.name
      tprev = memory.topics[name]
      if not tprev then memory.order[#memory.order + 1] = name end
      memory.topics[name] = id
    end
  end
  event.id = id
  -- A single concatenation creates only one string.
  if tprev then
    event.entry = '{"id":' .. id .. ',"prev":' .. prev .. ',"tprev":' .. tprev .. ',"last":' .. ids.logged .. ',' .. event.rest
  elseif prev then
    event.entry = '{"id":' .. id .. ',"prev":' .. prev .. ',"last":' .. ids.logged .. ',' .. event.rest
  else
    event.entry = '{"id":' .. id .. ',"last":' .. ids.logged .. ',' .. event.rest
  end
  say(reply, id, prev or '-', tprev or '-')
end

-- Assigns an event its position in the log, which is an array of segments. Returns the segment.
local function put_in_log(log, event, id, base)
  local at, size = math.floor(id / LOG_SEGMENT), #event.entry
  local segment = log[#log]
  if not segment or segment.number ~= at then
    local name = digits(at)
    local key = base .. 'log:' .. name
    segment = {
      number = at, name = name, key = key, order_key = key .. ':order', held_key = key .. ':held', bytes = size,
      bodies = { event.id, event.entry }, order = { event.id }, tenants = {},
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

-- Adds an event to the lanes of its topic's subscribers.
local function put_in_lanes(topic, id, size, hash)
  local divisions = topic.divisions
  for d = 1, #divisions do
    local division = divisions[d]
    local lane = hash % division.concurrency
    local bucket = division.buckets[lane]
    if bucket then
      local n = bucket.n + 1
      bucket.items[n], bucket.sizes[n], bucket.n, bucket.bytes = id, size, n, bucket.bytes + size
    else
      division.buckets[lane] = { items = { id }, sizes = { size }, n = 1, bytes = size }
      division.numbers[#division.numbers + 1] = lane
    end
  end
end

-- The earliest delivery time of an event, if that is later than now.
local function due_of(event, now)
  if string.byte(event.queues) ~= 64 then return nil end
  local plus, ms = string.match(event.queues, '^@(%+?)(%d+)')
  local due = tonumber(ms) + (plus == '+' and now or 0)
  return due > now and due
end

-- Adds an event to queues, each time to the slice of its tenant. A full queue that rejects messages does not get an
-- event, and records a gap: a client that defines a queue must not decide about the events of others. Messages were checked
-- before (fits_queues).
local function put_in_queues(slices, queues, event, client, segment, now, quota)
  local tenant, due = tenant_of(event), due_of(event, now)
  for place, weight, rules in string.gmatch(event.queues, '(%d+):(%d+):?(%S*)') do
    local queue = queues[tonumber(place)]
    if event.topic and not slices.fits(queue, tenant, 1, false) then
      slices.refuse(queue, tenant, event.id)
    else
      local push = queue.pushes[tenant]
      if not push then
        push = { items = {}, later = {}, weight = tonumber(weight), rules = rules }
        queue.pushes[tenant] = push
        queue.tenants[#queue.tenants + 1] = tenant
        if rules ~= '' then slices.expect('zset', queue.throttled) end
      end
      slices.plan(queue, tenant, due and true or false)
      if due then
        queue.delays = true
        push.later[#push.later + 1] = { id = event.id, entry = event.entry, due = due }
        charge(quota, event, client)
      else
        push.items[#push.items + 1] = event.id
        slices.hold(queue, segment.name, 1)
      end
    end
  end
end

-- Whether the bounded queues of a group can accept its messages. Events are accepted whatever queues match them.
local function fits_queues(group, slices, queues, now)
  local needed = {}
  for i = 1, #group do
    local event = group[i]
    if event.queues ~= '' and not event.topic then
      local tenant, is_delayed = tenant_of(event), due_of(event, now) and true or false
      for place in string.gmatch(event.queues, '(%d+):%d+%S*') do
        local name = place .. ':' .. tenant
        needed[name] = (needed[name] or 0) + 1
        if not slices.fits(queues[tonumber(place)], tenant, needed[name], is_delayed) then return false end
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

-- After how many ms a client may have another key: when its oldest one expires if it may have no more, and when memory is
-- checked again if that is short and its keys use most; nil for now. A key is never forgotten before it expires, because its event
-- could then be published twice.
local function wait_for_key(client, now, quota)
  local expired = digits(math.max(now - args.key_ms, 0))
  client.used = client.used or redis.call('ZCARD', client.ages) - redis.call('ZCOUNT', client.ages, '-inf', expired)
  local is_full = quota.full and quota.full['client:' .. client.name] and client.used > 0
  if client.used < args.max_keys and not is_full then return nil end
  if not client.wait then
    local oldest = redis.call('ZRANGE', client.ages, '(' .. expired, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    local wait = (tonumber(oldest[2]) or now) + args.key_ms - now
    if client.used < args.max_keys then wait = math.min(wait, quota.full_ms) end
    client.wait = digits(math.max(wait, 1))
  end
  return client.wait
end

-- Records what is published under the group's idempotency key.
local function note_key(group, now)
  local client, time = group.client, digits(now)
  client.used = client.used + 1
  local known = group.body .. ' ' .. group[1].id .. ' ' .. time
  local fields, times, n = client.fields, client.times, #client.fields
  client.published[group.digest] = known
  fields[n + 1], fields[n + 2] = group.digest, known
  times[n + 1], times[n + 2] = time, group.digest
end

-- The first two words of the reply to a rejected group; nil if the group is accepted.
local function refusal(group, now, to, labels, slices, queues, quota, states)
  if group.digest then
    local word, id = published_before(group, now)
    if word then return word, id end
    local wait = wait_for_key(group.client, now, quota)
    if wait then return 'k', wait end
  end
  if to == 'backend' and #group > group.memory.free then return 'f' end
  if to == 'log' and queues.bounded and not fits_queues(group, slices, queues, now) then return 'q' end
  local over = over_quota(group, quota, labels, states)
  if over then return over end
  if group.change and not labels.fits(group.change) then return 'x' end
end

-- Assigns ids to the events of an accepted group and adds them to the log, lanes and queues.
local function accept(group, ids, log, base, slices, queues, reply, now, quota)
  local memory, to_log = group.memory, group.to == 'log'
  for i = 1, #group do
    local event = group[i]
    number(event, memory, ids, reply)
    if to_log then
      ids.logged = event.id
      local segment = put_in_log(log, event, ids.last, base)
      charge(quota, event, group.client, segment)
      if event.topic then put_in_lanes(event.topic, event.id, #event.entry, group.hash) end
      if event.queues ~= '' then put_in_queues(slices, queues, event, group.client, segment, now, quota) end
    else
      charge(quota, event, group.client)
    end
  end
  if not to_log then memory.free = memory.free - #group end
  if #group == 0 then say(reply, 'n', '-', '-') end
end

-- Decides about all groups, in their order. Returns the log's new segments, the reply, and whether a label changes.
local function decide(groups, now, ids, base, slices, queues, labels, quota, states)
  local log, reply, changes = {}, { 'ok' }, false
  for g = 1, #groups do
    local group = groups[g]
    -- A message (an event without a topic) is for queues, even if its object has a backend.
    local to = group.memory.backend and group[1] and group[1].topic and 'backend' or 'log'
    local word, id = refusal(group, now, to, labels, slices, queues, quota, states)
    if word then
      say(reply, word, id or '-', '-')
    else
      group.to = to
      accept(group, ids, log, base, slices, queues, reply, now, quota)
      charge_state(quota, states, group)
      if group.change then changes = true end
      if group.digest then note_key(group, now) end
    end
  end
  return log, table.concat(reply, ' '), changes
end

-- Reads the state that is needed to append to the batches of each subscriber.
local function plan_batches(lanes, subscribers)
  for s = 1, #subscribers do
    local sub = subscribers[s]
    local division = sub.division
    if division and #division.numbers > 0 then sub.states = lanes.plan(sub, division.numbers, division.buckets) end
  end
end
