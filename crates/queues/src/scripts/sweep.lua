-- Gives back the messages of a queue whose leases have ended and those whose delay is over, returns slices to the ring whose
-- rates allow messages again, and records when the next sweep is due. A message that has reached its maximum number of
-- attempts becomes a dead letter. One that waits for the first time joins the end of its slice, and its body moves to the log.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum number of leases, of delays, and of slices
-- ARGV[3]: integer, maximum number of dead letters
-- Returns an array: how many leases had ended, how many delays were over, how many messages became dead letters, how
-- many slices were returned to the ring.
-- Caller: Store::sweep

-- Reads the messages whose leases have ended. Returns all of them, those that are returned, those that become dead
-- letters, and those that are delayed with their due times.
local function read_expired(slices, queue, expired, now)
  local landed, back, dead, later, dues = {}, {}, {}, {}, {}
  local values = lists.read('HMGET', queue.inflight, expired)
  for i = 1, #expired do
    local message = slices.flying(expired[i], values[i])
    if message then
      landed[#landed + 1] = message
      if queue.max_attempts > 0 and message.attempts >= queue.max_attempts then
        message.body = redis.call('HGET', KEYS[4] .. ':' .. message.segment, message.id)
        dead[#dead + 1] = message
      else
        local backoff = slices.backoff(queue, message.attempts)
        if backoff > 0 then
          later[#later + 1], dues[#dues + 1] = message, now + backoff
        else
          back[#back + 1] = message
        end
      end
      slices.load(queue, message.tenant)
    end
  end
  return landed, back, dead, later, dues
end

-- Adds the messages whose delay is over to those that are returned. Returns those that wait for the first time, in the
-- order in which they are due, with their bodies.
local function read_due(slices, queue, due, back)
  local fresh = {}
  for _, member in ipairs(due) do
    local item, tenant = string.match(member, '^(%S+) (.*)$')
    local id, _, attempts = slices.item(item)
    local slice = slices.load(queue, tenant)
    if attempts == 0 then
      fresh[#fresh + 1] = { id = id, slice = slice, body = redis.call('HGET', queue.later, id) }
    else
      back[#back + 1] = { id = id, item = item, tenant = tenant, was_delayed = true }
    end
  end
  return fresh
end

-- Puts messages that wait for the first time at the end of their slices. Their bodies move to the current segment of
-- the log. The slice is settled once at the end, so that it enters the ring once.
local function let_wait(slices, queue, fresh, now)
  local segment = slices.segment(now)
  local log = KEYS[4] .. ':' .. segment
  for _, message in ipairs(fresh) do
    message.slice.delayed = message.slice.delayed - 1
    if message.body then
      redis.call('HDEL', queue.later, message.id)
      -- Another queue may have put the message there already. It is counted in this order, because a tenant that stores
      -- nothing is forgotten.
      if redis.call('HSET', log, message.id, message.body) == 1 then
        redis.call('HINCRBY', KEYS[4], segment, #message.body)
        slices.charge(queue, message.slice.tenant, #message.body, segment)
      end
      slices.charge(queue, message.slice.tenant, -#message.body)
      slices.hold(queue, segment, 1)
      redis.call('RPUSH', message.slice.list, message.id .. '@' .. segment)
      message.slice.waiting = message.slice.waiting + 1
      slices.add(queue, 'waiting', 1)
    else
      slices.add(queue, 'lost', 1)
    end
  end
end

local function main(slices)
  local call, text = redis.call, slices.text
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then
    -- The queue was deleted. clear.lua removes what remains of it.
    call('ZREM', KEYS[3], string.match(KEYS[1], 'queue:([^:|]+)|ring$'))
    return { 0, 0, 0, 0 }
  end
  slices.expect('list', queue.dead)
  slices.expect('hash', KEYS[4], queue.later)
  local now, most, keep = slices.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local expired = call('ZRANGE', queue.leases, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, most)
  local due = call('ZRANGE', queue.delayed, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, most)
  local ready = call('ZRANGE', queue.throttled, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, most)
  local landed, back, dead, later, dues = read_expired(slices, queue, expired, now)
  local fresh = read_due(slices, queue, due, back)
  if #fresh > 0 then slices.expect('hash', KEYS[4] .. ':' .. slices.segment(now)) end
  for _, tenant in ipairs(ready) do slices.load(queue, tenant) end

  -- Redis accepts this at its memory limit, and then everything after it.
  call('ZREM', queue.due, queue.name)
  -- Otherwise a lease without a message would be swept again and again.
  lists.call('ZREM', queue.leases, expired)
  lists.call('ZREM', queue.delayed, due)
  lists.call('ZREM', queue.throttled, ready)
  for _, tenant in ipairs(ready) do slices.load(queue, tenant).throttled = false end
  slices.land(queue, landed)
  for _, message in ipairs(back) do
    if message.was_delayed then
      local slice = slices.load(queue, message.tenant)
      slice.delayed = slice.delayed - 1
    end
  end
  slices.give_back(queue, back)
  let_wait(slices, queue, fresh, now)
  slices.delay(queue, later, dues)
  slices.add(queue, 'delayed', -#due)
  slices.add(queue, 'expired', #landed)
  if #dead > 0 then slices.bury(queue, dead, 'expired', now, keep) end
  slices.settle_all(queue)
  local next_due = slices.next_due(queue)
  -- Not in the past: a queue that has more to sweep waits until the others that are due have had their turn.
  if next_due then call('ZADD', queue.due, text(math.max(next_due, now)), queue.name) end
  slices.finish(queue)
  return { #landed, #due, #dead, #ready }
end
