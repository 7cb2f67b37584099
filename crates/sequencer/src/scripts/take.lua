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
  local now, lease_ms, part = objects.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local leases, retry, workers = objects.key('leases'), objects.key('retry'), objects.key('workers')
  local numbers = objects.key('numbers')

  -- These reads find keys of another type before the first write; who sweeps touches more, and looks at it all.
  local ended = call('ZRANGE', leases, '-inf', objects.text(now), 'BYSCORE', 'LIMIT', 0, part)
  local due_now = call('ZRANGE', retry, '-inf', objects.text(now), 'BYSCORE', 'LIMIT', 0, part)
  local epoch = tonumber(call('HGET', numbers, 'epoch') or 0)
  if #ended + #due_now > 0 then objects.expect_shared() end

  for _, object in ipairs(ended) do
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
  for _, object in ipairs(due_now) do
    call('ZREM', retry, object)
    local backend = call('HGET', KEYS[1], object)
    if backend then objects.make_ready(object, backend) end
  end

  -- What the workers get, written together at the end.
  local taken, new, strings, holds, ends = {}, {}, {}, {}, {}
  local until_ms = objects.text(now + lease_ms)
  local function lease(object, backend, worker, entry)
    -- Not only a count: after a failover that lost writes an epoch must not come again.
    epoch = math.max(epoch + 1, now)
    local n = 2 * #new
    strings[2 * n + 1], strings[2 * n + 2] = objects.of(object, 'flight'), entry
    strings[2 * n + 3], strings[2 * n + 4] = objects.of(object, 'event.worker'), worker .. '/' .. objects.text(epoch)
    holds[n + 1], holds[n + 2] = worker, object
    ends[n + 1], ends[n + 2] = until_ms, object
    taken[#taken + 1] = { worker, object, backend, epoch }
    new[#new + 1] = { object = object, entry = entry, lease = taken[#taken] }
  end

  -- Takes what is ready for a backend, for the workers that hold nothing. A key of another type in the way of an object
  -- stops no other: that one is set aside.
  local function serve(backend, free)
    local ready, next_free = objects.ready_key(backend), 1
    while next_free <= #free do
      local popped = redis.pcall('ZPOPMIN', ready, #free - next_free + 1)
      if popped.err or #popped == 0 then return end
      local names = {}
      for n = 1, #popped, 2 do names[#names + 1] = popped[n] end
      local plain = not objects.any_has(names, 'failure', 'gaps')
      for _, object in ipairs(names) do
        local entry = (plain or objects.sound(object, backend)) and redis.pcall('LPOP', objects.of(object, 'events'))
        if type(entry) == 'string' then
          lease(object, backend, free[next_free], entry)
          next_free = next_free + 1
        elseif objects.sound(object, backend) then
          objects.settle(object, backend)
        else
          redis.pcall('ZADD', objects.key('parked'), objects.text(now), object)
        end
      end
    end
  end

  local left, at = 0, 4
  while ARGV[at] do
    local backend, count = ARGV[at], tonumber(ARGV[at + 1])
    local names = { unpack(ARGV, at + 2, at + 1 + count) }
    local free, held = {}, call('HMGET', workers, unpack(names))
    for n, worker in ipairs(names) do
      local owner = held[n] and call('GET', objects.of(held[n], 'event.worker'))
      local flight = held[n] and call('GET', objects.of(held[n], 'flight'))
      if owner and flight and string.match(owner, '^(.*)/') == worker then
        objects.await('leases', held[n], now + lease_ms)
        local of = tonumber(string.match(owner, '/(%d+)$'))
        local sending = objects.sending(held[n], flight)
        taken[#taken + 1] = { worker, held[n], call('HGET', KEYS[1], held[n]), of, sending }
      else
        free[#free + 1] = worker
      end
    end
    serve(backend, free)
    left = left + call('ZCARD', objects.ready_key(backend))
    at = at + 2 + count
  end
  if #new > 0 then
    call('HSET', numbers, 'epoch', objects.text(epoch))
    call('MSET', unpack(strings))
    call('HSET', workers, unpack(holds))
    call('ZADD', leases, unpack(ends))
    local sendings = objects.sendings(new)
    for n, one in ipairs(new) do one.lease[5] = sendings[n] end
  end

  local due = 0
  local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
  if first then
    due = tonumber(first)
    -- Who sleeps until a later time is told.
    if #new > 0 and due == now + lease_ms then objects.tell(due) end
  end
  local again = call('ZRANGE', retry, 0, 0, 'WITHSCORES')[2]
  if again and (due == 0 or tonumber(again) < due) then due = tonumber(again) end
  objects.finish()
  return { call('HGET', KEYS[2], 'stamp') or '', now, due, left, taken }
end
