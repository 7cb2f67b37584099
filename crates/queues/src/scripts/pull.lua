-- Hands out messages, fair between facets: the one at the head of the ring keeps its turn until its weight is used,
-- then goes to the tail (deficit round robin, in messages). The cost depends on how many are handed out, not on how
-- many facets there are.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, most messages
-- ARGV[3]: integer, most bytes of bodies (one message always goes)
-- ARGV[4]: string, random characters of this pull
-- ARGV[5]: integer, 1 to acknowledge at once
-- ARGV[6]: integer, revision of the queue that the caller knows
-- ARGV[7]: string, the only environment to hand out messages of, whoever's turn it is; empty for all of them in turn
-- ARGV[8]: integer, ms for which the caller waits for something of that environment, 0 if it does not
-- Returns `gone` (no such queue here), `behind` (the shard has older settings than the caller), or an array: unix ms,
-- end of the leases, 1 when there is more (of the environment, if one was named), the next moment at which something may be pulled or an empty string, how
-- many bodies were lost; then for each message id, attempt, environment, how many waited in its facet, and body.
-- Caller: Store::pull

local function main(facets)
  local call, text = redis.call, facets.text
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return 'gone' end
  if queue.revision < tonumber(ARGV[6]) then return 'behind' end
  facets.expect('hash', queue.inflight)
  local now, most, most_bytes = facets.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local nonce, auto, only = ARGV[4], ARGV[5] == '1', ARGV[7] ~= '' and ARGV[7] or nil
  local until_ms = now + queue.lease
  local until_text = text(until_ms)

  -- First everything is read and decided: whose turn it is, what it gives, and how the ring stands afterwards.
  -- `order` is the ring from its head; facets that have had their turn are appended to it.
  -- Who named one environment gets it out of turn: the others keep their places, and it keeps its own.
  local order
  if only then
    order = facets.eligible(queue, facets.load(queue, only)) and { only } or {}
  else
    order = call('ZRANGE', queue.ring, 0, most - 1)
  end
  local loaded = #order
  local whole = only or call('ZCARD', queue.ring) == loaded
  local head, tail = 1, loaded
  local visited, taken, bytes, lost, full = {}, {}, 0, {}, false
  local count = 0
  while count < most and head <= tail and not full and (whole or head <= loaded) do
    local facet = facets.load(queue, order[head])
    if not facet.taken then
      facet.taken, facet.backlog = 0, facet.waiting
      visited[#visited + 1] = facet
    end
    local credit = only and facet.waiting or facet.weight - facet.used
    local n = math.min(credit, facet.waiting, most - count)
    if queue.limit > 0 and not auto then n = math.min(n, queue.limit - facet.flying) end
    local items = n > 0 and call('LRANGE', facet.list, facet.taken, facet.taken + n - 1) or {}
    for i = 1, #items do
      local id, segment, attempts = facets.item(items[i])
      local body = call('HGET', KEYS[4] .. ':' .. segment, id)
      if body and #taken > 0 and bytes + #body > most_bytes then
        full = true
        break
      end
      facet.taken, facet.waiting, credit, count = facet.taken + 1, facet.waiting - 1, credit - 1, count + 1
      if body then
        bytes = bytes + #body
        if not auto then facet.flying = facet.flying + 1 end
        if attempts == 0 then
          local dwell = math.max(0, now - facets.since(items[i]))
          facet.dwell = facet.dwell and facet.dwell + (dwell - facet.dwell) / 8 or dwell
        end
        taken[#taken + 1] = {
          id = id, segment = segment, attempt = attempts + 1, item = items[i], facet = facet, body = body,
        }
      else
        lost[#lost + 1] = segment
      end
    end
    if not facets.eligible(queue, facet) then
      facet.used = 0
      head = head + 1
    elseif not only and credit <= 0 then
      facet.used = 0
      head, tail = head + 1, tail + 1
      order[tail] = facet.env
    elseif not only then
      -- It keeps its turn: this call is full, or some bodies were lost.
      facet.used = facet.weight - credit
    end
  end
  local popped = math.min(head - 1, loaded)

  -- From here on nothing is refused. The first write frees memory, so it is allowed at the memory limit, and so is
  -- what follows: else nothing would drain.
  for _, facet in ipairs(visited) do
    if facet.taken > 0 then call('LPOP', facet.list, facet.taken) end
  end
  if only then
    if popped > 0 then call('ZREM', queue.ring, only) end
    if #taken == 0 and tonumber(ARGV[8]) > 0 then facets.watch(queue, ARGV[8]) end
  else
    if popped > 0 then call('ZREMRANGEBYRANK', queue.ring, 0, popped - 1) end
    local from = math.max(head, loaded + 1)
    if from <= tail then facets.enter(queue, { unpack(order, from, tail) }) end
  end
  queue.woken = false -- who pulled tells the next one itself
  for _, facet in ipairs(visited) do facets.write(queue, facet) end
  local leases, inflight, n = {}, {}, 0
  local reply = { text(now), text(until_ms), (whole and tail < head) and '0' or '1', '', text(#lost) }
  local words = #reply
  for _, message in ipairs(taken) do
    if auto then
      facets.hold(queue, message.segment, -1)
    else
      leases[n + 1], leases[n + 2] = until_text, message.id
      inflight[n + 1] = message.id
      inflight[n + 2] = nonce .. ' ' .. text(message.attempt) .. ' ' .. facets.tried(message.item, message.attempt)
        .. ' ' .. message.facet.env
      n = n + 2
    end
    reply[words + 1], reply[words + 2], reply[words + 3] = message.id, text(message.attempt), message.facet.env
    reply[words + 4], reply[words + 5] = text(message.facet.backlog), message.body
    words = words + 5
  end
  if n > 0 then
    call('ZADD', queue.leases, unpack(leases))
    call('HSET', queue.inflight, unpack(inflight))
    facets.add(queue, 'inflight', #taken)
    facets.schedule(queue, until_ms)
  end
  for _, segment in ipairs(lost) do facets.hold(queue, segment, -1) end
  facets.add(queue, 'waiting', -count)
  facets.add(queue, 'pulled', #taken)
  facets.add(queue, 'lost', #lost)
  if auto then facets.add(queue, 'acked', #taken) end
  facets.finish(queue)
  if #taken == 0 then
    local due = facets.next_due(queue)
    if due then reply[4] = text(due) end
  end
  return reply
end
