-- Checks the invariants of a queue, part by part. Changes nothing. A queue that has no more facets and messages in flight or
-- delayed than a part is checked as a whole. Of a larger one, the facets are checked, but not the sums over its messages.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, maximum number of facets, and of messages in flight or delayed, in a part
-- ARGV[2]: string, the environment after which this part begins; empty for the first part
-- ARGV[3]: integer, unix ms; empty for the time of this server
-- Returns the environment after which the next part begins, empty after the last one; then for each finding the predicate, the
-- environment (or an empty string) and what is wrong.
-- Caller: Store::audit

-- Counts the messages in flight and the delayed ones by environment, and checks that each has one state.
local function count_messages(facets, queue, report)
  local flying, delayed, seen = {}, {}, {}
  local held = redis.call('HGETALL', queue.inflight)
  for i = 1, #held, 2 do
    local id, env = held[i], string.match(held[i + 1], '^%S+ %d+ %S+ (.*)$') or ''
    flying[env] = (flying[env] or 0) + 1
    seen[id] = true
    if not redis.call('ZSCORE', queue.leases, id) then report('F7', env, id .. ' is in flight without a lease') end
  end
  for _, member in ipairs(redis.call('ZRANGE', queue.delayed, 0, -1)) do
    local item, env = string.match(member, '^(%S+) (.*)$')
    delayed[env] = (delayed[env] or 0) + 1
    local id, segment, attempts = facets.item(item)
    if attempts == 0 and redis.call('HEXISTS', queue.later, id) == 0 then
      report('F7', env, id .. ' is delayed and has no body in segment ' .. segment)
    end
    if seen[id] then report('F7', env, id .. ' is delayed and in flight') end
  end
  return flying, delayed
end

-- Checks a facet. Returns whether it is in the ring.
local function check_facet(facets, queue, facet, report)
  local env = facet.env
  if not facet.known or facet.waiting + facet.flying + facet.delayed == 0 then
    report('F1', env, 'it is active and has no messages')
  end
  local ranked = tonumber(redis.call('ZSCORE', queue.depths, env) or 0)
  if ranked ~= facet.rank or facets.is_misranked(facet) then
    report('F8', env, 'the ranking has ' .. facets.text(ranked) .. ' messages of it')
  end
  local should, is = facets.eligible(facet), redis.call('ZSCORE', queue.ring, env)
  if should and not is then report('F2', env, 'it can be pulled from and is not in the ring') end
  if is and not should then report('F2', env, 'it is in the ring and cannot be pulled from') end
  return is
end

-- Compares the queue's counters with its content.
local function check_numbers(queue, inside, ranked, waiting, in_flight, later, report)
  if redis.call('ZCARD', queue.ring) ~= inside then
    report('F2', '', 'the ring has environments that are not active')
  end
  if redis.call('ZCARD', queue.depths) ~= ranked then
    report('F8', '', 'the ranking has environments that are not active')
  end
  local counts = redis.call('HMGET', queue.count, 'waiting', 'inflight', 'delayed')
  local function compare(count, is, what)
    if tonumber(count or 0) ~= is then report('F5', '', 'it counts other ' .. what .. ' than there are') end
  end
  compare(counts[1], waiting, 'messages waiting')
  compare(counts[2], in_flight, 'messages in flight')
  compare(counts[3], later, 'delayed messages')
end

local function main(facets)
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { '' } end
  local most, after, found = tonumber(ARGV[1]), ARGV[2], { '' }
  local function report(predicate, env, what)
    found[#found + 1], found[#found + 2], found[#found + 3] = predicate, env, what
  end
  local active = redis.call('ZCARD', queue.index)
  local in_flight, later = redis.call('HLEN', queue.inflight), redis.call('ZCARD', queue.delayed)
  local whole = after == '' and active <= most and in_flight <= most and later <= most
  local flying, delayed = {}, {}
  if whole then flying, delayed = count_messages(facets, queue, report) end
  if after == '' and redis.call('ZCARD', queue.leases) ~= in_flight then
    report('F7', '', 'leases and messages in flight differ in number')
  end

  local inside, ranked, waiting = 0, 0, 0
  local envs = redis.call('ZRANGE', queue.index, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, most)
  if #envs == most and not whole then found[1] = envs[most] end
  for _, env in ipairs(envs) do
    local facet = facets.load(queue, env)
    waiting = waiting + facet.waiting
    if facet.rank > 0 then ranked = ranked + 1 end
    if check_facet(facets, queue, facet, report) then inside = inside + 1 end
    if whole and (facet.flying ~= (flying[env] or 0) or facet.delayed ~= (delayed[env] or 0)) then
      report('F5', env, 'its numbers are not those of its messages')
    end
    flying[env], delayed[env] = nil, nil
  end
  for env in pairs(flying) do report('F1', env, 'it has messages in flight and is not active') end
  for env in pairs(delayed) do report('F1', env, 'it has delayed messages and is not active') end
  if whole then check_numbers(queue, inside, ranked, waiting, in_flight, later, report) end
  local next_due, noted = facets.next_due(queue), redis.call('ZSCORE', queue.due, queue.name)
  -- A queue of which a sweep has left something is due again at the time of that sweep.
  local latest = math.max(next_due or 0, facets.now(ARGV[3]))
  if after == '' and next_due and (not noted or tonumber(noted) > latest) then
    report('F7', '', 'something is due and no sweep is scheduled for it')
  end
  return found
end
