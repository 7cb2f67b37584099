
-- Part 2b, the bytes that the fabric stores for each environment: events in the log, those that wait for a backend, and
-- delayed messages. They are counted only if they are limited. One hash has the counts of all subsystems, so that each
-- script that stores or removes a body can change them.

-- The environment of an event: the first part of its live channel.
local function environment_of(event)
  return string.match(event.channel, '^[^:]*')
end

-- Reads how much the environments of a call use. `used` includes what the call adds, and is false without a limit.
local function open_quota(groups, base)
  local quota = { key = base .. 'environments', used = false, added = {} }
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

-- Whether the environments of a group may store its events. Signalbox's own events are never rejected.
local function fits_quota(group, quota)
  if not quota.used or group.change then return true end
  local needed = {}
  for i = 1, #group do
    local event = group[i]
    if not (event.topic and string.find(event.topic.name, 'signalbox.', 1, true) == 1) then
      local env = environment_of(event)
      needed[env] = (needed[env] or quota.used[env]) + #event.rest
      if needed[env] > args.environment_bytes then return false end
    end
  end
  return true
end

-- Counts a stored body, once for each segment of the log that contains it.
local function charge(quota, event, segment)
  if not quota.used then return end
  local env, size = environment_of(event), #event.entry
  quota.used[env], quota.added[env] = quota.used[env] + size, (quota.added[env] or 0) + size
  if segment then segment.environments[env] = (segment.environments[env] or 0) + size end
end

-- Writes the counts. Those of a segment are needed when the segment is removed.
local function write_quota(quota, log)
  for env, bytes in pairs(quota.added) do redis.call('HINCRBY', quota.key, env, digits(bytes)) end
  for s = 1, #log do
    for env, bytes in pairs(log[s].environments) do
      redis.call('HINCRBY', log[s].key .. ':environments', env, digits(bytes))
    end
  end
end
