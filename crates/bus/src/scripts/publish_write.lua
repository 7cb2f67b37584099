
-- Part 4, the writes. From here on, nothing is rejected.

-- A client with more idempotency keys is counted among the owners of memory.
local MANY_KEYS = 1000
-- Expired keys that a call removes for a client that has to wait.
local MAX_EXPIRED = 100

-- Writes the labels of a call without new events.
local function write_labels(groups, labels)
  for g = 1, #groups do
    local group = groups[g]
    if group.to and group.change then labels.write(group.change, 0) end
  end
  labels.finish()
end

-- Writes the last id, and the last id in the log if that is a different one.
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
  lists.call('HSET', keys.objects, fields)
end

-- Stores the bodies, and updates the counters.
local function write_log(log, topics, accepted)
  for s = 1, #log do
    local segment = log[s]
    lists.call('HSET', segment.key, segment.bodies)
    lists.call('RPUSH', segment.order_key, segment.order)
    redis.call('HINCRBY', keys.log, segment.name, segment.bytes)
  end
  for t = 1, #topics do
    if topics[t].count > 0 then redis.call('HINCRBY', topics[t].key, 'counter', topics[t].count) end
  end
  redis.call('HINCRBY', keys.counters, 'events.published', accepted)
end

-- Records in which segments of the log a subscriber needs bodies. Usually a call has only one.
local function hold(sub, log)
  if #log == 1 then return redis.call('HINCRBY', log[1].held_key, sub.token, sub.events) end
  local counts, division = {}, sub.division
  for i = 1, #division.numbers do
    local items = division.buckets[division.numbers[i]].items
    for n = 1, #items do
      local segment = math.floor(tonumber(items[n]) / LOG_SEGMENT)
      counts[segment] = (counts[segment] or 0) + 1
    end
  end
  for s = 1, #log do
    local count = counts[log[s].number]
    if count then redis.call('HINCRBY', log[s].held_key, sub.token, count) end
  end
end

-- Appends events to the batches of subscribers.
local function write_batches(lanes, subscribers, log, now, new_bid)
  for s = 1, #subscribers do
    local sub = subscribers[s]
    if sub.states then
      local division = sub.division
      for i = 1, #division.numbers do
        lanes.append(sub.states[i], division.buckets[division.numbers[i]], now, new_bid)
      end
      lanes.appended(sub)
      hold(sub, log)
    end
  end
end

-- Pushes messages to the slices of queues.
local function write_queues(slices, queues, now)
  for q = 1, #queues do
    local queue = queues[q]
    for i = 1, #queue.tenants do
      local tenant = queue.tenants[i]
      local push, slice = queue.pushes[tenant], queue.slices[tenant]
      if #push.items > 0 then slices.push(queue, slice, push.items, push.weight, push.rules) end
      for l = 1, #push.later do
        local later = push.later[l]
        slices.push_later(queue, slice, later.id, later.entry, later.due, push.weight, push.rules)
      end
      slices.add(queue, 'pushed', #push.items + #push.later)
    end
    slices.keep_bounds(queue, now)
    slices.finish(queue)
  end
end

-- Adds the events of a group to `puts`: an array for `objects.enqueue`, with the index of each object in `by_object`.
local function put_in_backend(puts, group)
  local put = puts.by_object[group.object]
  if not put then
    put = { object = group.object, backend = group.memory.backend, entries = {}, queued = group.memory.queued }
    puts.by_object[group.object] = put
    puts[#puts + 1] = put
  end
  for i = 1, #group do put.entries[#put.entries + 1] = group[i].entry end
end

-- Writes states and labels, and publishes events live. Returns the events for backends; nil if there are none.
local function write_groups(groups, labels, prefix)
  local puts
  for g = 1, #groups do
    local group = groups[g]
    if group.to then
      if group.state == 'null' then
        redis.call('UNLINK', prefix .. group.object .. ':data')
      elseif group.state ~= '' then
        redis.call('SET', prefix .. group.object .. ':data', group.state)
      end
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

-- Stores the publishes under a client's idempotency keys, and removes expired ones: up to two for each new one, so that
-- the call is short and expired keys do not accumulate. Notes how many keys the client uses if these are many.
local function write_keys(client, now)
  local bodies, ages, most = client.bodies, client.ages, #client.fields
  if most == 0 and not client.wait then return end
  lists.call('HSET', bodies, client.fields)
  lists.call('ZADD', ages, client.times)
  -- A client that has to wait for its keys to expire has no new ones.
  local count = math.max(most, client.wait and MAX_EXPIRED or 0)
  local old = redis.call('ZRANGE', ages, '-inf', digits(now - args.key_ms), 'BYSCORE', 'LIMIT', 0, count)
  if #old > 0 then
    lists.call('HDEL', bodies, old)
    lists.call('ZREM', ages, old)
  end
  if most > 0 then
    redis.call('PEXPIRE', bodies, 2 * args.key_ms)
    redis.call('PEXPIRE', ages, 2 * args.key_ms)
  end
  if client.used > MANY_KEYS or 2 * client.used > args.max_keys then
    redis.call('HSET', keys.used_keys, client.name, client.used .. ' ' .. digits(now))
    redis.call('PEXPIRE', keys.used_keys, 2 * args.key_ms)
  end
end

local function main(lanes, open_slices, open_objects, open_labels)
  local early = early_reply()
  if early then return early end
  local now, new_bid = lanes.now(args.now), lanes.bids(args.seed)
  local slices, labels = args.with_queues and open_slices(), args.with_changes and open_labels(lanes)
  local subscribers, topics, clients, queues, groups = read_lists(slices, labels)

  expect_fixed(lanes, topics)
  local last = redis.call('GET', keys.last_id) or '0'
  local names, memories, with_backends = collect(groups)
  read_memories(names, memories)
  local objects = open_backends(lanes, open_objects, names, memories, with_backends)
  local state = redis.call('HMGET', keys.state, 'exchanged_at', 'logged', 'full')
  local exchanged_at, logged = state[1], state[2]
  local ids = {
    last = tonumber(last), last_text = last, lowest = (now - EPOCH) * 6400 + args.shard,
    logged = logged or last, accepted = 0,
  }
  local quota = open_quota(groups, lanes.base, state[3], now)
  local states = open_states(groups, lanes.base)
  local log, reply, changes = decide(groups, now, ids, lanes.base, slices, queues, labels, quota, states)
  plan_batches(lanes, subscribers)
  expect_touched(lanes, slices, log, clients, queues)
  local remembered = redis.call('HLEN', keys.objects)

  -- The first write needs memory, so that it fails at the memory limit and nothing is written partly.
  redis.call('SET', keys.last_call, args.sequence .. ' ' .. reply, 'PX', REPLY_MS)
  if ids.accepted == 0 then
    if changes then write_labels(groups, labels) end
    for c = 1, #clients do write_keys(clients[c], now) end
    return reply
  end
  write_ids(ids, logged)
  exchange_memories(now, tonumber(exchanged_at or 0), remembered)
  write_memories(names, memories)
  write_log(log, topics, ids.accepted)
  write_quota(quota, log)
  write_states(states)
  write_batches(lanes, subscribers, log, now, new_bid)
  write_queues(slices, queues, now)
  local puts = write_groups(groups, labels, lanes.objects)
  for c = 1, #clients do write_keys(clients[c], now) end
  lanes.finish()
  if puts then objects.enqueue(puts) end
  if objects then objects.finish() end
  if labels then labels.finish() end
  return reply
end
