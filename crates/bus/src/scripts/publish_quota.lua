
-- Part 2b, the bytes that the fabric stores for each owner. For a tenant these are its events in the log, those that
-- wait for a backend, delayed messages, and states of objects; for `machine:<name>` the labels of a state machine. Names of
-- tenants have no colon. One hash has the counts of all subsystems, so that each script that stores or removes data can
-- change them. If memory is short, they show which owners use most.
-- A client may use any number of tenants. Another hash has for each tenant the client that publishes most of its
-- bytes, so that housekeeping can count its tenants together. A client gains by what it publishes, others lose as much,
-- and when nothing remains, the other one takes its place: so a single value shows a client that publishes more than half.

-- The tenant of an event: the first part of its live channel.
local function tenant_of(event)
  return string.match(event.channel, '^[^:]*')
end

-- Reads how much the tenants of a call use. `used` includes what the call adds, and is false if nothing is limited.
-- `full` is what housekeeping noted because memory is short: unix ms, a space, and each owner that uses most, behind the
-- length of its name and a colon. `client:<name>` is a client with many idempotency keys, and `publisher:<bytes>:<name>` one
-- whose tenants use most; it may still add to those that use less than these bytes. `publishers` has them by name.
-- `votes` has for each tenant which client publishes most in this call.
local function open_quota(groups, base, full, now)
  local quota = {
    key = base .. 'environments', clients = base .. 'environments:clients', used = false, added = {}, votes = {},
    full = false, full_ms = 0, publishers = {},
  }
  local till, refused = string.match(full or '', '^(%d+) (.*)$')
  if till and tonumber(till) > now then
    -- The note outlives the pacemaker that made it; usually the memory is checked much earlier.
    quota.full, quota.full_ms = {}, math.min(tonumber(till) - now, 10000)
    local at, from, to, length = 1
    repeat
      from, to, length = string.find(refused, '^(%d+):', at)
      if from then
        at = to + length + 1
        local owner = string.sub(refused, to + 1, at - 1)
        local bytes, client = string.match(owner, '^publisher:(%d+):(.*)$')
        if client then quota.publishers[client] = tonumber(bytes) else quota.full[owner] = true end
      end
    until not from
  end
  if args.tenant_bytes == 0 and not quota.full then return quota end
  local names, used = {}, {}
  for g = 1, #groups do
    for i = 1, #groups[g] do
      local tenant = tenant_of(groups[g][i])
      if not used[tenant] then names[#names + 1], used[tenant] = tenant, 0 end
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

-- Whether memory is short and new data of this tenant is rejected: for everybody, or for this client.
local function is_refused(quota, tenant, client)
  if not quota.full then return false end
  local least, used = quota.publishers[client.name], quota.used[tenant]
  return quota.full[tenant] or least and (used == 0 or used >= least)
end

-- Whether an event is one of Signalbox's own.
local function is_own(event)
  return event.topic and event.topic.own
end

-- Whether the owners of a group may not store its data: `e` above the limit of a tenant, `m` while memory is short.
-- Signalbox's own events are never rejected, and labels continue to move. A group that frees more than it stores is never
-- rejected, because a tenant above its limit must be able to remove its states.
local function over_quota(group, quota, labels, states)
  if group.change then return quota.full and quota.full[labels.grows(group.change) or ''] and 'm' end
  if not quota.used then return nil end
  local needed, most = {}, args.tenant_bytes > 0 and args.tenant_bytes or math.huge
  if group.state ~= '' and #group > 0 then
    local more = (group.state == 'null' and 0 or #group.state) - state_bytes(states, group)
    local stored = more
    for i = 1, #group do stored = stored + #group[i].rest end
    if stored <= 0 then return nil end
    local tenant = tenant_of(group[1])
    needed[tenant] = quota.used[tenant] + math.max(more, 0)
  end
  for i = 1, #group do
    local event = group[i]
    if not is_own(event) then
      local tenant = tenant_of(event)
      if is_refused(quota, tenant, group.client) then return 'm' end
      needed[tenant] = (needed[tenant] or quota.used[tenant]) + #event.rest
      if needed[tenant] > most then return 'e' end
    end
  end
end

-- Which of two clients publishes most to a tenant, and by how many bytes more than all others, at most. `client` may
-- be nil.
local function vote(client, bytes, other, more)
  if client == other then return client, bytes + more end
  if client and bytes >= more then return client, bytes - more end
  return other, more - bytes
end

-- Counts bytes that a client publishes to a tenant.
local function vote_for(quota, tenant, client, bytes)
  local so_far = quota.votes[tenant]
  if not so_far then
    quota.votes[tenant] = { client = client.name, bytes = bytes }
  else
    so_far.client, so_far.bytes = vote(so_far.client, so_far.bytes, client.name, bytes)
  end
end

-- Counts a stored body, once for each segment of the log that contains it. Signalbox's own events have no owner.
local function charge(quota, event, client, segment)
  local tenant, size, added = tenant_of(event), #event.entry, quota.added
  if quota.used then quota.used[tenant] = quota.used[tenant] + size end
  added[tenant] = (added[tenant] or 0) + size
  if segment then segment.tenants[tenant] = (segment.tenants[tenant] or 0) + size end
  if not is_own(event) then vote_for(quota, tenant, client, size) end
end

-- Reads which tenants the states of a call's objects are counted for.
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

-- Counts the new state of a group's object for the tenant of its first event, and no longer for the one before.
local function charge_state(quota, states, group)
  if group.state == '' or #group == 0 then return end
  local counted, tenant = states.counted[group.object], tenant_of(group[1])
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
    add(tenant, #group.state)
    vote_for(quota, tenant, group.client, #group.state)
    states.counted[group.object] = digits(#group.state) .. ' ' .. tenant
  end
  states.changed = true
end

-- Stores which tenants the states of a call's objects are counted for.
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

-- Writes the counts, and which client publishes most to each tenant. It was ahead by no more than what the tenant
-- stores. The counts of a segment are needed when the segment is removed.
local function write_quota(quota, log)
  local names, before, fields = {}, {}, {}
  for tenant, bytes in pairs(quota.added) do
    local left = redis.call('HINCRBY', quota.key, tenant, digits(bytes))
    if left <= 0 then
      redis.call('HDEL', quota.key, tenant)
      redis.call('HDEL', quota.clients, tenant)
    elseif quota.votes[tenant] then
      names[#names + 1], before[#before + 1] = tenant, math.max(left - bytes, 0)
    end
  end
  local found = #names > 0 and lists.read('HMGET', quota.clients, names)
  for i = 1, #names do
    local ahead, client = string.match(found[i] or '', '^(%d+) (.*)$')
    local this = quota.votes[names[i]]
    client, ahead = vote(client, math.min(tonumber(ahead or 0), before[i]), this.client, this.bytes)
    fields[2 * i - 1], fields[2 * i] = names[i], digits(ahead) .. ' ' .. client
  end
  lists.call('HSET', quota.clients, fields)
  for s = 1, #log do
    for tenant, bytes in pairs(log[s].tenants) do
      redis.call('HINCRBY', log[s].key .. ':environments', tenant, digits(bytes))
    end
  end
end
