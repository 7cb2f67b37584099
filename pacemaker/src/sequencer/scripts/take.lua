-- Gives ready objects to workers: each gets one, with a lease of its own epoch and the event at the head of its queue.
-- A worker that holds an object already gets the same one again: its reply was lost. Leases that have ended are
-- swept before, and objects whose retry is due are made ready, so no other part has to watch over them.
-- KEYS[1]: hash, object -> its backend
-- KEYS[2]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3]: integer, objects swept, and made ready, at most
-- ARGV[4...]: for each backend its name, the number of workers that are free for it, and their names
-- Returns the registry's stamp, the time, when something is due next or 0, the number of ready objects of the
-- backends asked for, and an array of leases: worker, object, backend, epoch, then the array of `objects.sending`.
-- Caller: Store::take

local function main(objects)
  local call = redis.call
  objects.at(string.match(KEYS[1], '^(.*)queued$'))
  objects.expect_shared()
  local now, lease_ms, part = objects.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local leases, retry, workers = objects.key('leases'), objects.key('retry'), objects.key('workers')

  for _, object in ipairs(call('ZRANGE', leases, '-inf', objects.text(now), 'BYSCORE', 'LIMIT', 0, part)) do
    local backend = call('HGET', KEYS[1], object)
    if not backend then
      call('ZREM', leases, object)
    elseif not objects.sound(object, backend) then
      -- A key of another type is in its way. The others go on; this one is looked at again, and `check` names it.
      call('ZADD', leases, objects.text(now + lease_ms), object)
    else
      local owner = call('GET', objects.of(object, 'event.worker')) or ''
      objects.let_go(object, string.match(owner, '^(.*)/') or '')
      -- Perhaps it was sent and perhaps its sending killed the worker: it counts as an attempt.
      if objects.put_back(object) then objects.failed(object, 'its worker went away', now) end
      objects.count('swept', 1)
      objects.settle(object, backend)
    end
  end
  for _, object in ipairs(call('ZRANGE', retry, '-inf', objects.text(now), 'BYSCORE', 'LIMIT', 0, part)) do
    call('ZREM', retry, object)
    local backend = call('HGET', KEYS[1], object)
    if backend then objects.make_ready(object, backend) end
  end

  local function lease(object, backend, worker)
    if not objects.sound(object, backend) then
      call('ZADD', objects.key('parked'), objects.text(now), object)
      return nil
    end
    local entry = call('LPOP', objects.of(object, 'events'))
    if not entry then return objects.settle(object, backend) end
    call('SET', objects.of(object, 'flight'), entry)
    -- Not only a count: after a failover that lost writes an epoch must not come again.
    local numbers = objects.key('numbers')
    local epoch = math.max(tonumber(call('HGET', numbers, 'epoch') or 0) + 1, now)
    call('HSET', numbers, 'epoch', objects.text(epoch))
    call('SET', objects.of(object, 'event.worker'), worker .. '/' .. objects.text(epoch))
    call('HSET', workers, worker, object)
    objects.await('leases', object, now + lease_ms)
    return { worker, object, backend, epoch, objects.sending(object, entry) }
  end

  local taken, left, at = {}, 0, 4
  while ARGV[at] do
    local backend, free = ARGV[at], tonumber(ARGV[at + 1])
    local ready = objects.ready_key(backend)
    for place = at + 2, at + 1 + free do
      local worker = ARGV[place]
      local held = call('HGET', workers, worker)
      local owner = held and call('GET', objects.of(held, 'event.worker'))
      local flight = held and call('GET', objects.of(held, 'flight'))
      if owner and flight and string.match(owner, '^(.*)/') == worker then
        objects.await('leases', held, now + lease_ms)
        local epoch = tonumber(string.match(owner, '/(%d+)$'))
        local sending = objects.sending(held, flight)
        taken[#taken + 1] = { worker, held, call('HGET', KEYS[1], held), epoch, sending }
      else
        local got
        while not got do
          local popped = call('ZPOPMIN', ready)
          if #popped == 0 then break end
          got = lease(popped[1], backend, worker)
        end
        if not got then break end
        taken[#taken + 1] = got
      end
    end
    left = left + call('ZCARD', ready)
    at = at + 2 + free
  end

  local due = 0
  for _, set in ipairs({ leases, retry }) do
    local head = call('ZRANGE', set, 0, 0, 'WITHSCORES')
    if head[2] and (due == 0 or tonumber(head[2]) < due) then due = tonumber(head[2]) end
  end
  objects.finish()
  return { call('HGET', KEYS[2], 'stamp') or '', now, due, left, taken }
end
