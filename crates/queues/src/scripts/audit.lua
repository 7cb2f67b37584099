-- Looks for what must never be in a queue, in one moment and without changing anything. Of a queue with more facets or
-- messages in flight than may be looked at, only the first facets and the ring are looked at.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, most facets, and most messages in flight or delayed
-- Returns for each finding the predicate, the environment (or an empty string) and what is wrong.
-- Caller: Store::audit

local function main(facets)
  local call = redis.call
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return {} end
  local most, found = tonumber(ARGV[1]), {}
  local function tell(predicate, env, what)
    found[#found + 1], found[#found + 2], found[#found + 3] = predicate, env, what
  end
  local index = call('ZCARD', queue.index)
  local in_flight, later = call('HLEN', queue.inflight), call('ZCARD', queue.delayed)
  local whole = index <= most and in_flight <= most and later <= most
  local flying, delayed, seen = {}, {}, {}
  if whole then
    local held = call('HGETALL', queue.inflight)
    for i = 1, #held, 2 do
      local env = string.match(held[i + 1], '^%S+ %d+ %S+ (.*)$') or ''
      flying[env] = (flying[env] or 0) + 1
      seen[held[i]] = true
      if not call('ZSCORE', queue.leases, held[i]) then tell('F7', env, held[i] .. ' is in flight without a lease') end
    end
    for _, member in ipairs(call('ZRANGE', queue.delayed, 0, -1)) do
      local item, env = string.match(member, '^(%S+) (.*)$')
      delayed[env] = (delayed[env] or 0) + 1
      local id = facets.item(item)
      if seen[id] then tell('F7', env, id .. ' is delayed and in flight') end
    end
  end
  if call('ZCARD', queue.leases) ~= in_flight then tell('F7', '', 'leases and messages in flight differ in number') end

  local inside, waiting = 0, 0
  for _, env in ipairs(call('ZRANGE', queue.index, 0, most - 1)) do
    local facet = facets.load(queue, env)
    waiting = waiting + facet.waiting
    if not facet.known or facet.waiting + facet.flying + facet.delayed == 0 then
      tell('F1', env, 'it is active and has no messages')
    end
    local should, is = facets.eligible(queue, facet), call('ZSCORE', queue.ring, env)
    if is then inside = inside + 1 end
    if should and not is then tell('F2', env, 'it can be pulled from and is not in the ring') end
    if is and not should then tell('F2', env, 'it is in the ring and cannot be pulled from') end
    if whole and (facet.flying ~= (flying[env] or 0) or facet.delayed ~= (delayed[env] or 0)) then
      tell('F5', env, 'its numbers are not those of its messages')
    end
    flying[env], delayed[env] = nil, nil
  end
  for env in pairs(flying) do tell('F1', env, 'it has messages in flight and is not active') end
  for env in pairs(delayed) do tell('F1', env, 'it has delayed messages and is not active') end
  if whole then
    if call('ZCARD', queue.ring) ~= inside then tell('F2', '', 'the ring has environments that are not active') end
    local counts = call('HMGET', queue.count, 'waiting', 'inflight', 'delayed')
    if tonumber(counts[1] or 0) ~= waiting then tell('F5', '', 'it counts other messages waiting than there are') end
    if tonumber(counts[2] or 0) ~= in_flight then tell('F5', '', 'it counts other messages in flight than there are') end
    if tonumber(counts[3] or 0) ~= later then tell('F5', '', 'it counts other delayed messages than there are') end
  end
  local next_due, noted = facets.next_due(queue), call('ZSCORE', queue.due, queue.name)
  if next_due and (not noted or tonumber(noted) > next_due) then
    tell('F7', '', 'something is due that nobody will look at')
  end
  return found
end
