
-- Part 2b, the bytes that the fabric stores for each owner. For an environment these are its events in the log, those that
-- wait for a backend, delayed messages, and states of objects; for `machine:<name>` the labels of a state machine. The bytes
-- in the log are counted for `publisher:<client>` as well, because a client may use any number of environments. Names of
-- environments have no colon. One hash has the counts of all subsystems, so that each script that stores or removes data can
-- change them. If memory is short, they show which owners use most.

-- The environment of an event: the first part of its live channel.
local function environment_of(event)
  return string.match(event.channel, '^[^:]*')
end

-- Reads how much the environments of a call use. `used` includes what the call adds, and is false without a limit.
-- `full` is what housekeeping noted because memory is short: unix ms, a space, and each owner that uses most, behind the
-- length of its name and a colon. `client:<name>` is a client with many idempotency keys.
local function open_quota(groups, base, full, now)
  local quota = { key = base .. 'environments', used = false, added = {}, full = false, full_ms = 0 }
  local till, refused = string.match(full or '', '^(%d+) (.*)$')
  if till and tonumber(till) > now then
    quota.full, quota.full_ms = {}, tonumber(till) - now
    local at, from, to, length = 1
    repeat
      from, to, length = string.find(refused, '^(%d+):', at)
      if from then
        at = to + length + 1
        quota.full[string.sub(refused, to + 1, at - 1)] = true
      end
    until not from
  end
  if args.environment_bytes == 0 then return quota end
  local names, used = {}, {}
  for g = 1, #groups do
    for i = 1, #groups[g] do
      local env = environment_of(groups[g][i])
      if not used[env] then names[#names + 1], used[env] = env, 0 end
    end
  end
  local found = lists.read('HMGET', quota.key, names)
  for i = 1, #names do used[names[i]] = tonumber(found[i] or 0) end
  quota.used = used
  return quota
end

-- The bytes that are counted for the state of a group's object.
local function state_bytes(states, group)
  return tonumber(string.match(states.counted[group.object] or '', '^%d+') or 0)
end

-- Whether the owners of a group may not store its data: `e` above the limit of an environment, `m` while memory is short.
-- Signalbox's own events are never rejected, and labels continue to move. A group that frees more than it stores is never
-- rejected, because an environment above its limit must be able to remove its states.
local function over_quota(group, quota, labels, states)
  if group.change then return quota.full and quota.full[labels.grows(group.change) or ''] and 'm' end
  if not (quota.used or quota.full) then return nil end
  local needed = {}
  if group.state ~= '' and #group > 0 then
    local more = (group.state == 'null' and 0 or #group.state) - state_bytes(states, group)
    local stored = more
    for i = 1, #group do stored = stored + #group[i].rest end
    if stored <= 0 then return nil end
    local env = environment_of(group[1])
    if quota.used then needed[env] = quota.used[env] + math.max(more, 0) end
  end
  for i = 1, #group do
    local event = group[i]
    if not (event.topic and string.find(event.topic.name, 'signalbox.', 1, true) == 1) then
      local env = environment_of(event)
      if quota.full and (quota.full[env] or quota.full[group.client.owner]) then return 'm' end
      if quota.used then
        needed[env] = (needed[env] or quota.used[env]) + #event.rest
        if needed[env] > args.environment_bytes then return 'e' end
      end
    end
  end
end

-- Counts a stored body, once for each segment of the log that contains it; there, for its publisher as well.
local function charge(quota, event, segment, publisher)
  local env, size, added = environment_of(event), #event.entry, quota.added
  if quota.used then quota.used[env] = quota.used[env] + size end
  added[env] = (added[env] or 0) + size
  if segment then
    local owners = segment.environments
    added[publisher] = (added[publisher] or 0) + size
    owners[env], owners[publisher] = (owners[env] or 0) + size, (owners[publisher] or 0) + size
  end
end

-- Reads which environments the states of a call's objects are counted for.
local function open_states(groups, base)
  local states = { key = base .. 'states', names = {}, counted = {}, changed = false }
  for g = 1, #groups do
    local group = groups[g]
    if group.state ~= '' and #group > 0 then states.names[#states.names + 1] = group.object end
  end
  if #states.names == 0 then return states end
  local found = lists.read('HMGET', states.key, states.names)
  for i = 1, #states.names do states.counted[states.names[i]] = found[i] or nil end
  return states
end

-- Counts the new state of a group's object for the environment of its first event, and no longer for the one before.
local function charge_state(quota, states, group)
  if group.state == '' or #group == 0 then return end
  local counted, env = states.counted[group.object], environment_of(group[1])
  local function add(owner, bytes)
    quota.added[owner] = (quota.added[owner] or 0) + bytes
    if quota.used and quota.used[owner] then quota.used[owner] = quota.used[owner] + bytes end
  end
  if counted then
    local bytes, before = string.match(counted, '^(%d+) (.*)$')
    add(before, -bytes)
  end
  if group.state == 'null' then
    states.counted[group.object] = nil
  else
    add(env, #group.state)
    states.counted[group.object] = digits(#group.state) .. ' ' .. env
  end
  states.changed = true
end

-- Stores which environments the states of a call's objects are counted for.
local function write_states(states)
  if not states.changed then return end
  local stored, removed = {}, {}
  for i = 1, #states.names do
    local name = states.names[i]
    local counted = states.counted[name]
    if counted then
      stored[#stored + 1], stored[#stored + 2] = name, counted
    else
      removed[#removed + 1] = name
    end
  end
  lists.call('HSET', states.key, stored)
  lists.call('HDEL', states.key, removed)
end

-- Writes the counts. Those of a segment are needed when the segment is removed.
local function write_quota(quota, log)
  for env, bytes in pairs(quota.added) do
    if redis.call('HINCRBY', quota.key, env, digits(bytes)) <= 0 then redis.call('HDEL', quota.key, env) end
  end
  for s = 1, #log do
    for env, bytes in pairs(log[s].environments) do
      redis.call('HINCRBY', log[s].key .. ':environments', env, digits(bytes))
    end
  end
end
