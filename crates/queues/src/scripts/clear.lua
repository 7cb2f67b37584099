-- Removes a queue that was deleted, part by part. No message is pushed to it by then: it is removed only if the registry is
-- still the one in which it was deleted. A queue that was created again under its name is not touched.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the registry of this shard
-- ARGV[1]: string, the stamp of the registry in which the queue is deleted
-- ARGV[2]: integer, messages in a part; a slice counts as 5 more
-- Returns 1 when there is more, 0 when nothing is left, -1 when the registry has another stamp (nothing was done).
-- Caller: Store::clear

local function main(slices)
  local call = redis.call
  if call('HGET', KEYS[4], 'stamp') ~= ARGV[1] then return -1 end
  local queue = slices.open(KEYS[2], KEYS[3], KEYS[1], 0)
  local most = tonumber(ARGV[2])
  local left = most
  -- Redis accepts this at its memory limit, and then everything after it. Without settings nothing is delivered, and
  -- waiting pulls are woken to detect the removal.
  if call('UNLINK', queue.settings, queue.ring) > 0 then call('PUBLISH', queue.prefix .. 'wake', 'gone ' .. queue.name) end
  call('ZREM', queue.due, queue.name)
  local function forget(item, tenant)
    local id, segment = slices.item(item)
    slices.release(queue, id, segment, tenant)
    left = left - 1
  end
  for _, tenant in ipairs(call('ZRANGE', queue.index, 0, math.ceil(most / 5))) do
    local list = queue.base .. ':' .. tenant
    for _, item in ipairs(call('LPOP', list, left) or {}) do forget(item, tenant) end
    if left <= 0 then break end
    call('DEL', queue.base .. '|facet:' .. tenant)
    call('ZREM', queue.index, tenant)
    left = left - 5
    if left <= 0 then break end
  end
  if left > 0 then
    local delayed = call('ZPOPMIN', queue.delayed, left)
    for i = 1, #delayed, 2 do forget(string.match(delayed[i], '^(%S+) (.*)$')) end
  end
  while left > 0 do
    local flying = call('HRANDFIELD', queue.inflight, left, 'WITHVALUES')
    if #flying == 0 then break end
    for i = 1, #flying, 2 do
      call('HDEL', queue.inflight, flying[i])
      forget(string.match(flying[i + 1], '^%S+ %d+ (%S+) (.*)$'))
    end
  end
  slices.finish(queue)
  if left <= 0 then return 1 end
  call('UNLINK', queue.leases, queue.inflight, queue.delayed, queue.dead, queue.count, queue.index, queue.later,
    queue.throttled, queue.rates, queue.gaps, queue.depths)
  return 0
end
