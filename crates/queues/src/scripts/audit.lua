-- Checks the invariants of a queue, part by part. Changes nothing. A queue that has no more slices and messages in flight or
-- delayed than a part is checked as a whole. Of a larger one, the slices are checked, but not the sums over its messages.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, maximum number of slices, and of messages in flight or delayed, in a part
-- ARGV[2]: string, the tenant after which this part begins; empty for the first part
-- ARGV[3]: integer, unix ms; empty for the time of this server
-- Returns the tenant after which the next part begins, empty after the last one; then for each finding the predicate, the
-- tenant (or an empty string) and what is wrong.
-- Caller: Store::audit

-- Counts the messages in flight and the delayed ones by tenant, and checks that each has one state.
local function count_messages(slices, queue, report)
  local flying, delayed, seen = {}, {}, {}
  local held = redis.call('HGETALL', queue.inflight)
  for i = 1, #held, 2 do
    local id, tenant = held[i], string.match(held[i + 1], '^%S+ %d+ %S+ (.*)$') or ''
    flying[tenant] = (flying[tenant] or 0) + 1
    seen[id] = true
    if not redis.call('ZSCORE', queue.leases, id) then report('F7', tenant, id .. ' is in flight without a lease') end
  end
  for _, member in ipairs(redis.call('ZRANGE', queue.delayed, 0, -1)) do
    local item, tenant = string.match(member, '^(%S+) (.*)$')
    delayed[tenant] = (delayed[tenant] or 0) + 1
    local id, segment, attempts = slices.item(item)
    if attempts == 0 and redis.call('HEXISTS', queue.later, id) == 0 then
      report('F7', tenant, id .. ' is delayed and has no body in segment ' .. segment)
    end
    if seen[id] then report('F7', tenant, id .. ' is delayed and in flight') end
  end
  return flying, delayed
end

-- Checks a slice. Returns whether it is in the ring.
local function check_slice(slices, queue, slice, report)
  local tenant = slice.tenant
  if not slice.known or slice.waiting + slice.flying + slice.delayed == 0 then
    report('F1', tenant, 'it is active and has no messages')
  end
  local ranked = tonumber(redis.call('ZSCORE', queue.depths, tenant) or 0)
  if ranked ~= slice.rank or slices.is_misranked(slice) then
    report('F8', tenant, 'the ranking has ' .. slices.text(ranked) .. ' messages of it')
  end
  local should, is = slices.eligible(slice), redis.call('ZSCORE', queue.ring, tenant)
  if should and not is then report('F2', tenant, 'it can be pulled from and is not in the ring') end
  if is and not should then report('F2', tenant, 'it is in the ring and cannot be pulled from') end
  return is
end

-- Compares the queue's counters with its content.
local function check_numbers(queue, inside, ranked, waiting, in_flight, later, report)
  if redis.call('ZCARD', queue.ring) ~= inside then
    report('F2', '', 'the ring has tenants that are not active')
  end
  if redis.call('ZCARD', queue.depths) ~= ranked then
    report('F8', '', 'the ranking has tenants that are not active')
  end
  local counts = redis.call('HMGET', queue.count, 'waiting', 'inflight', 'delayed')
  local function compare(count, is, what)
    if tonumber(count or 0) ~= is then report('F5', '', 'it counts other ' .. what .. ' than there are') end
  end
  compare(counts[1], waiting, 'messages waiting')
  compare(counts[2], in_flight, 'messages in flight')
  compare(counts[3], later, 'delayed messages')
end

local function main(slices)
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { '' } end
  local most, after, found = tonumber(ARGV[1]), ARGV[2], { '' }
  local function report(predicate, tenant, what)
    found[#found + 1], found[#found + 2], found[#found + 3] = predicate, tenant, what
  end
  local active = redis.call('ZCARD', queue.index)
  local in_flight, later = redis.call('HLEN', queue.inflight), redis.call('ZCARD', queue.delayed)
  local whole = after == '' and active <= most and in_flight <= most and later <= most
  local flying, delayed = {}, {}
  if whole then flying, delayed = count_messages(slices, queue, report) end
  if after == '' and redis.call('ZCARD', queue.leases) ~= in_flight then
    report('F7', '', 'leases and messages in flight differ in number')
  end

  local inside, ranked, waiting = 0, 0, 0
  local tenants = redis.call('ZRANGE', queue.index, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, most)
  if #tenants == most and not whole then found[1] = tenants[most] end
  for _, tenant in ipairs(tenants) do
    local slice = slices.load(queue, tenant)
    waiting = waiting + slice.waiting
    if slice.rank > 0 then ranked = ranked + 1 end
    if check_slice(slices, queue, slice, report) then inside = inside + 1 end
    if whole and (slice.flying ~= (flying[tenant] or 0) or slice.delayed ~= (delayed[tenant] or 0)) then
      report('F5', tenant, 'its numbers are not those of its messages')
    end
    flying[tenant], delayed[tenant] = nil, nil
  end
  for tenant in pairs(flying) do report('F1', tenant, 'it has messages in flight and is not active') end
  for tenant in pairs(delayed) do report('F1', tenant, 'it has delayed messages and is not active') end
  if whole then check_numbers(queue, inside, ranked, waiting, in_flight, later, report) end
  local next_due, noted = slices.next_due(queue), redis.call('ZSCORE', queue.due, queue.name)
  -- A queue of which a sweep has left something is due again at the time of that sweep.
  local latest = math.max(next_due or 0, slices.now(ARGV[3]))
  if after == '' and next_due and (not noted or tonumber(noted) > latest) then
    report('F7', '', 'something is due and no sweep is scheduled for it')
  end
  return found
end
