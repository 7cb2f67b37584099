-- Gives ready objects to workers: each worker gets one, with a lease under a new epoch and the event at the head of the
-- object's queue. A worker that holds an object already gets the same one again: its reply was lost. Before that,
-- leases that have ended are swept, and objects whose retry is due become ready, so no other script has to check for
-- them. The retries of a backend that was changed become due.
-- KEYS[1]: hash, object -> its backend
-- KEYS[2]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3]: integer, maximum number of objects to sweep, and to make ready
-- ARGV[4...]: for each backend its name, the number of workers that are free for it, and their names
-- Returns the registry's stamp, the time, when something is due next or 0, the number of ready objects of the
-- backends asked for, and an array of leases: worker, object, backend, epoch, then the array of `objects.sending`.
-- Caller: Store::take

-- Ends leases. An object with a key of another type keeps its lease for another period, so that it does not stop the
-- others; `check` reports it.
local function sweep(objects, ended, now, lease_ms)
  for _, object in ipairs(ended) do
    local backend = redis.call('HGET', KEYS[1], object)
    if not backend then
      redis.call('ZREM', objects.key('leases'), object)
    elseif not objects.is_consistent(object, backend) then
      redis.call('ZADD', objects.key('leases'), objects.text(now + lease_ms), object)
    else
      local owner = redis.call('GET', objects.of(object, 'event.worker')) or ''
      objects.let_go(object, string.match(owner, '^(.*)/') or '')
      -- The event may have been sent, or sending it may have crashed the worker, so it counts as an attempt.
      if objects.put_back(object) then objects.failed(object, 'its worker disappeared', now) end
      objects.count('swept', 1)
      objects.settle(object, backend)
    end
  end
end

-- Makes objects ready whose retry is due.
local function retry(objects, due)
  for _, object in ipairs(due) do
    redis.call('ZREM', objects.key('retry'), object)
    local backend = redis.call('HGET', KEYS[1], object)
    if backend then objects.make_ready(object, backend) end
  end
end

-- Objects of which one call ends the pauses.
local PAUSES = '100'

-- Ends the pauses of the objects of the first of these backends that was changed (the script that stores the change notes that),
-- a part of them in each call. Returns whether there may be more.
local function end_pauses(objects, backends, now)
  local numbers, retry, fields = objects.key('numbers'), objects.key('retry'), {}
  for n, backend in ipairs(backends) do fields[n] = 'pauses@' .. backend end
  local cursors = lists.read('HMGET', numbers, fields)
  for n, backend in ipairs(backends) do
    if cursors[n] then
      local found = redis.call('ZSCAN', retry, cursors[n], 'COUNT', PAUSES)
      for at = 1, #found[2], 2 do
        local object = found[2][at]
        if tonumber(found[2][at + 1]) > now and redis.call('HGET', KEYS[1], object) == backend then
          redis.call('ZADD', retry, objects.text(now), object)
        end
      end
      if found[1] == '0' then
        redis.call('HDEL', numbers, fields[n])
      else
        redis.call('HSET', numbers, fields[n], found[1])
      end
      return true
    end
  end
  return false
end

-- Adds a lease to the batch that is written at the end.
local function lease(objects, leases, object, backend, worker, entry)
  -- At least the current time, not only a counter: after a failover that lost writes, no epoch may be used twice.
  leases.epoch = math.max(leases.epoch + 1, leases.now)
  local taken, new, strings = leases.taken, leases.new, leases.strings
  local n = 2 * #new
  strings[2 * n + 1], strings[2 * n + 2] = objects.of(object, 'flight'), entry
  strings[2 * n + 3] = objects.of(object, 'event.worker')
  strings[2 * n + 4] = worker .. '/' .. objects.text(leases.epoch)
  leases.holds[n + 1], leases.holds[n + 2] = worker, object
  leases.ends[n + 1], leases.ends[n + 2] = leases.until_ms, object
  taken[#taken + 1] = { worker, object, backend, leases.epoch }
  new[#new + 1] = { object = object, entry = entry, lease = taken[#taken] }
end

-- Leases ready objects of a backend to workers that hold nothing. An object with a key of another type is parked, so
-- that it does not stop the others.
local function serve(objects, leases, backend, free)
  local ready, next_free = objects.ready_key(backend), 1
  while next_free <= #free do
    local popped = redis.pcall('ZPOPMIN', ready, #free - next_free + 1)
    if popped.err or #popped == 0 then return end
    local names = {}
    for n = 1, #popped, 2 do names[#names + 1] = popped[n] end
    local plain = not objects.any_has(names, 'failure', 'gaps')
    for _, object in ipairs(names) do
      local entry = (plain or objects.is_consistent(object, backend))
        and redis.pcall('LPOP', objects.of(object, 'events'))
      if type(entry) == 'string' then
        lease(objects, leases, object, backend, free[next_free], entry)
        next_free = next_free + 1
      elseif objects.is_consistent(object, backend) then
        objects.settle(object, backend)
      else
        redis.pcall('ZADD', objects.key('parked'), objects.text(leases.now), object)
      end
    end
  end
end

-- Returns to workers the leases that they already hold, extended. Returns the workers that hold nothing.
local function repeat_held(objects, leases, names, due)
  local free, held = {}, lists.read('HMGET', objects.key('workers'), names)
  for n, worker in ipairs(names) do
    local object = held[n]
    local owner = object and redis.call('GET', objects.of(object, 'event.worker'))
    local flight = object and redis.call('GET', objects.of(object, 'flight'))
    if owner and flight and string.match(owner, '^(.*)/') == worker then
      objects.await('leases', object, due)
      local epoch = tonumber(string.match(owner, '/(%d+)$'))
      local sending = objects.sending(object, flight)
      leases.taken[#leases.taken + 1] = { worker, object, redis.call('HGET', KEYS[1], object), epoch, sending }
    else
      free[#free + 1] = worker
    end
  end
  return free
end

-- Writes the new leases.
local function write_leases(objects, leases)
  local new = leases.new
  if #new == 0 then return end
  redis.call('HSET', objects.key('numbers'), 'epoch', objects.text(leases.epoch))
  lists.call('MSET', nil, leases.strings)
  lists.call('HSET', objects.key('workers'), leases.holds)
  lists.call('ZADD', objects.key('leases'), leases.ends)
  local sendings = objects.sendings(new)
  for n, one in ipairs(new) do one.lease[5] = sendings[n] end
end

-- When the next lease ends or the next retry is due; 0 if there is none. If that is a new lease, workers that sleep
-- until a later time are woken.
local function next_due(objects, has_new, new_end)
  local due = 0
  local first = redis.call('ZRANGE', objects.key('leases'), 0, 0, 'WITHSCORES')[2]
  if first then
    due = tonumber(first)
    if has_new and due == new_end then objects.notify(due) end
  end
  local again = redis.call('ZRANGE', objects.key('retry'), 0, 0, 'WITHSCORES')[2]
  if again and (due == 0 or tonumber(again) < due) then due = tonumber(again) end
  return due
end

local function main(objects)
  local now, lease_ms, most = objects.now(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local now_text = objects.text(now)

  -- These reads detect keys of the wrong type before the first write. A sweep touches more keys, and checks all of
  -- them.
  local ended = redis.call('ZRANGE', objects.key('leases'), '-inf', now_text, 'BYSCORE', 'LIMIT', 0, most)
  local due_now = redis.call('ZRANGE', objects.key('retry'), '-inf', now_text, 'BYSCORE', 'LIMIT', 0, most)
  local epoch = tonumber(redis.call('HGET', objects.key('numbers'), 'epoch') or 0) or 0
  if #ended + #due_now > 0 then objects.expect_shared() else objects.expect('hash', 'queued') end
  sweep(objects, ended, now, lease_ms)
  retry(objects, due_now)

  local leases = {
    now = now, until_ms = objects.text(now + lease_ms), epoch = epoch,
    taken = {}, new = {}, strings = {}, holds = {}, ends = {},
  }
  local left, at, backends = 0, 4, {}
  while ARGV[at] do
    local backend, count = ARGV[at], tonumber(ARGV[at + 1])
    backends[#backends + 1] = backend
    local names = lists.copy(ARGV, at + 2, at + 1 + count)
    serve(objects, leases, backend, repeat_held(objects, leases, names, now + lease_ms))
    left = left + redis.call('ZCARD', objects.ready_key(backend))
    at = at + 2 + count
  end
  write_leases(objects, leases)
  local due = next_due(objects, #leases.new > 0, now + lease_ms)
  if end_pauses(objects, backends, now) then due = now end
  return { redis.call('HGET', KEYS[2], 'stamp') or '', now, due, left, leases.taken }
end
