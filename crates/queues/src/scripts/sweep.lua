-- Gives back the messages of a queue whose leases have ended and those whose delay is over, and records when the next
-- sweep is due. A message that has reached its maximum number of attempts becomes a dead letter.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum number of messages
-- ARGV[3]: integer, maximum number of dead letters
-- Returns an array: how many leases had ended, how many delays were over, how many messages became dead letters.
-- Caller: Store::sweep

-- Reads the messages whose leases have ended. Returns all of them, those that are returned, and those that become
-- dead letters.
local function read_expired(facets, queue, expired)
  local landed, back, dead = {}, {}, {}
  local values = #expired > 0 and redis.call('HMGET', queue.inflight, unpack(expired)) or {}
  for i = 1, #expired do
    local _, attempts, item, env = string.match(values[i] or '', '^(%S+) (%d+) (%S+) (.*)$')
    if env then
      local _, segment = facets.item(item)
      local message = { id = expired[i], attempts = tonumber(attempts), item = item, env = env, segment = segment }
      landed[#landed + 1] = message
      if queue.max_attempts > 0 and message.attempts >= queue.max_attempts then
        message.body = redis.call('HGET', KEYS[4] .. ':' .. segment, message.id)
        dead[#dead + 1] = message
      else
        back[#back + 1] = message
      end
      facets.load(queue, env)
    end
  end
  return landed, back, dead
end

-- Adds the messages whose delay is over to those that are returned.
local function read_due(facets, queue, due, back)
  for _, member in ipairs(due) do
    local item, env = string.match(member, '^(%S+) (.*)$')
    back[#back + 1] = { id = facets.item(item), item = item, env = env, was_delayed = true }
    facets.load(queue, env)
  end
end

local function main(facets)
  local call, text = redis.call, facets.text
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then
    -- It was deleted. clear.lua removes what is left of it.
    call('ZREM', KEYS[3], string.match(KEYS[1], 'queue:([^:|]+)|ring$'))
    return { 0, 0, 0 }
  end
  facets.expect('list', queue.dead)
  local now, most, keep = facets.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local expired = call('ZRANGE', queue.leases, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, most)
  local due = call('ZRANGE', queue.delayed, '-inf', text(now), 'BYSCORE', 'LIMIT', 0, most)
  local landed, back, dead = read_expired(facets, queue, expired)
  read_due(facets, queue, due, back)

  -- This is allowed at the memory limit, and so is everything after it.
  call('ZREM', queue.due, queue.name)
  -- A lease without a message would be swept again and again.
  if #expired > 0 then call('ZREM', queue.leases, unpack(expired)) end
  if #due > 0 then call('ZREM', queue.delayed, unpack(due)) end
  facets.land(queue, landed)
  for _, message in ipairs(back) do
    if message.was_delayed then
      local facet = facets.load(queue, message.env)
      facet.delayed = facet.delayed - 1
    end
  end
  facets.give_back(queue, back)
  facets.add(queue, 'delayed', -#due)
  facets.add(queue, 'expired', #landed)
  if #dead > 0 then facets.bury(queue, dead, 'expired', now, keep) end
  facets.settle_all(queue)
  local next_due = facets.next_due(queue)
  if next_due then call('ZADD', queue.due, text(next_due), queue.name) end
  facets.finish(queue)
  return { #landed, #due, #dead }
end
