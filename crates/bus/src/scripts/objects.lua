-- Shared code of every script that accesses the queue of an object. It is appended to those scripts at compile time,
-- which define `main(objects)` above, or use it after `open_objects` (the publish script). A script sets the key prefix
-- once, with `objects.at`. All keys have the shard's hash tag.
--
-- Of the shard:
--   hash  queued        object -> its backend, while it has a queue
--   zset  objects.with.events@<backend>   objects that can be taken, by turn
--   zset  leases        object -> when its lease ends, unix ms
--   zset  retry         object -> when it is tried again, unix ms
--   zset  parked        object -> since when, unix ms
--   hash  workers       worker -> the object it holds
--   hash  numbers       turn, epoch, counters; `objects@<backend>` and `events@<backend>`: queued objects and events;
--                       `changed@<backend>`: version of the registry in which the backend was changed last;
--                       `pauses@<backend>`: cursor in `retry`, while the pauses of a changed backend's objects are ended
--   list  dead@<backend>  dead letters
-- Of an object: `:events` (list, the head is next), `:flight` (the event that its worker is sending), `:event.worker`
-- (worker/epoch), `:failure` (hash, of the event at the head), `:gaps` (list), `:last.event.id` (last one sent).
--
-- An object with a queue is in exactly one of ready, leased, retry and parked. The event in flight is not in the list.

local objects = {}
local base
local wake

-- Maximum number of gaps that wait for one object. Further ones are merged into the last.
local MAX_GAPS = 64

function objects.at(prefix) base = prefix end

local function text(number)
  return string.format('%.0f', number)
end
objects.text = text

function objects.now(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

function objects.key(name) return base .. name end
function objects.of(object, name) return base .. object .. ':' .. name end
function objects.ready_key(backend) return base .. 'objects.with.events@' .. backend end

-- Whether a key is absent or of the type. Redis does not undo a script that fails halfway, so types are checked before
-- the first write.
local function is(kind, key)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

local function expect(kind, key)
  if not is(kind, key) then error({ err = 'WRONGTYPE ' .. key .. ' is not a ' .. kind }) end
end

-- Checks some keys of the shard.
function objects.expect(kind, ...)
  for n = 1, select('#', ...) do expect(kind, base .. select(n, ...)) end
end

-- Checks the ready objects of a backend, once per call.
local checked = {}
function objects.expect_backend(backend)
  if checked[backend] then return end
  checked[backend] = true
  expect('zset', objects.ready_key(backend))
end

-- Checks all keys of the shard.
function objects.expect_shared()
  expect('hash', base .. 'queued')
  expect('hash', base .. 'workers')
  expect('hash', base .. 'numbers')
  expect('zset', base .. 'leases')
  expect('zset', base .. 'retry')
  expect('zset', base .. 'parked')
end

-- Whether the keys of an object and its backend have the right types.
function objects.is_consistent(object, backend)
  return is('zset', objects.ready_key(backend)) and is('list', base .. 'dead@' .. backend)
    and is('list', objects.of(object, 'events')) and is('list', objects.of(object, 'gaps'))
    and is('string', objects.of(object, 'flight')) and is('string', objects.of(object, 'event.worker'))
    and is('hash', objects.of(object, 'failure'))
end

function objects.expect_of(object, backend)
  if not objects.is_consistent(object, backend) then
    local owners = 'the object ' .. object .. ' or of the backend ' .. backend
    error({ err = 'WRONGTYPE a key of ' .. owners .. ' is of another type' })
  end
end

function objects.count(field, delta)
  return redis.call('HINCRBY', base .. 'numbers', field, text(delta))
end

-- The number of queued events of an object, including the one in flight.
function objects.length(object)
  return redis.call('LLEN', objects.of(object, 'events')) + redis.call('EXISTS', objects.of(object, 'flight'))
end

-- The id of an entry, which is an event's JSON that begins with the id.
function objects.id(entry) return string.match(entry, '^{"id":(%d+)') end

-- Whether an entry is a redriven dead letter: it follows later events, and its gap was reported.
function objects.redriven(entry) return string.find(entry, '^{"id":%d+,"redriven":') ~= nil end

-- Makes objects ready that are in no other state, in this order. Workers sleep while no object is ready, so the first
-- objects wake them.
local function make_all_ready(names, backend)
  local key = objects.ready_key(backend)
  local turn, places = objects.count('turn', #names) - #names, {}
  for n = 1, #names do places[2 * n - 1], places[2 * n] = text(turn + n), names[n] end
  lists.call('ZADD', key, places)
  if redis.call('ZCARD', key) == #names then wake = 'now' end
end

function objects.make_ready(object, backend) make_all_ready({ object }, backend) end

-- Wakes workers that sleep beyond `due`, unless an earlier wake-up of this call does.
function objects.notify(due)
  if wake ~= 'now' and (not wake or due < tonumber(wake)) then wake = text(due) end
end

-- Adds an object to a set by its due time, and wakes workers that sleep beyond it.
function objects.await(set, object, due)
  local key = base .. set
  redis.call('ZADD', key, text(due), object)
  if redis.call('ZRANK', key, object) == 0 then objects.notify(due) end
end

-- Wakes sleeping workers, once per call. It is called last.
function objects.finish()
  if wake then redis.call('PUBLISH', base .. 'wake', wake) end
end

-- The tenant of a stored event: the first member with this name. A text before it cannot contain the name as a
-- member, because its quotation marks are escaped. Earlier releases stored it as the environment.
local function tenant_of(entry)
  local _, from = string.find(entry, '"tenant":"', 1, true)
  -- The tenant is before the data, so usually only the beginning is searched.
  local _, old = string.find(from and string.sub(entry, 1, from) or entry, '"environment":"', 1, true)
  from = old or from
  local at = from
  if not at then return nil end
  repeat
    at = string.find(entry, '["\\]', at + 1)
    if not at then return nil end
    local is_end = string.sub(entry, at, at) == '"'
    if not is_end then at = at + 1 end
  until is_end
  return (string.gsub(string.sub(entry, from + 1, at - 1), '\\(.)', '%1'))
end

-- Changes the number of bytes that are stored for tenants (see publish_quota.lua): `sign` is
-- 1 for entries that are stored and -1 for those that are removed.
function objects.charge(entries, sign)
  local key = string.sub(base, 1, -1 - #'object:') .. 'bus:environments'
  local bytes = {}
  for at = 1, #entries do
    local tenant = tenant_of(entries[at])
    if tenant then bytes[tenant] = (bytes[tenant] or 0) + sign * #entries[at] end
  end
  for tenant, changed in pairs(bytes) do
    if redis.call('HINCRBY', key, tenant, text(changed)) <= 0 then
      redis.call('HDEL', key, tenant)
      redis.call('HDEL', key .. ':clients', tenant)
    end
  end
end

-- Appends events to queues. Each put is { object, backend, entries, queued }: the backend of the object's queue
-- (`queued`) or, if the object has no queue, the one that its name belongs to. Each object has one put.
function objects.enqueue(puts)
  local events, fields, fresh = {}, {}, {}
  for _, put in ipairs(puts) do
    lists.call('RPUSH', objects.of(put.object, 'events'), put.entries)
    local backend = put.backend
    events[backend] = (events[backend] or 0) + #put.entries
    if not put.queued then
      fields[#fields + 1], fields[#fields + 2] = put.object, backend
      fresh[backend] = fresh[backend] or {}
      table.insert(fresh[backend], put.object)
    end
  end
  for backend, count in pairs(events) do objects.count('events@' .. backend, count) end
  lists.call('HSET', base .. 'queued', fields)
  for backend, names in pairs(fresh) do
    objects.count('objects@' .. backend, #names)
    make_all_ready(names, backend)
  end
end

-- Records that a range of an object's events may not have been delivered.
local function gap(object, first, last, count, reason)
  local key = objects.of(object, 'gaps')
  -- The key has an expiry if a removed backend left it.
  redis.call('PERSIST', key)
  if redis.call('RPUSH', key, first .. ' ' .. last .. ' ' .. text(count) .. ' ' .. reason) > MAX_GAPS then
    local newer, older = redis.call('RPOP', key), redis.call('RPOP', key)
    local f1, _, c1, reason_before = string.match(older, '^(%d+) (%d+) (%d+) (.*)$')
    local _, l2, c2 = string.match(newer, '^(%d+) (%d+) (%d+) ')
    redis.call('RPUSH', key, f1 .. ' ' .. l2 .. ' ' .. text(c1 + c2) .. ' ' .. reason_before)
  end
end

-- Whether the worker still has the lease: it was not swept, acquired by another worker, or released.
function objects.holds(object, owner)
  return redis.call('GET', objects.of(object, 'event.worker')) == owner
end

-- Ends a lease. Redis accepts its first write at its memory limit, and then everything after it.
function objects.let_go(object, worker)
  redis.call('ZREM', base .. 'leases', object)
  redis.call('DEL', objects.of(object, 'event.worker'))
  redis.call('HDEL', base .. 'workers', worker)
end

-- Returns the event in flight to the head of its queue.
function objects.put_back(object)
  local key = objects.of(object, 'flight')
  local entry = redis.call('GET', key)
  if entry then
    redis.call('DEL', key)
    redis.call('LPUSH', objects.of(object, 'events'), entry)
  end
  return entry
end

-- Puts an object that left its state into the next one: ready if events wait, otherwise idle.
function objects.settle(object, backend)
  if redis.call('EXISTS', objects.of(object, 'events')) == 1 then
    return objects.make_ready(object, backend)
  end
  redis.call('HDEL', base .. 'queued', object)
  if objects.count('objects@' .. backend, -1) <= 0 then redis.call('HDEL', base .. 'numbers', 'objects@' .. backend) end
end

-- Records that a number of events have left the object's queue.
function objects.left(object, backend, events)
  redis.call('DEL', objects.of(object, 'failure'))
  if objects.count('events@' .. backend, -events) <= 0 then
    redis.call('HDEL', base .. 'numbers', 'events@' .. backend)
  end
end

-- Drops events from the head of an object's queue. They become dead letters if `what` is `dead`, and a gap that the
-- object's next event reports. `why` and `attempts` are those of the first event. A backend keeps the last `most` dead
-- letters; if that was lowered, at most twice as many are dropped as are added, and some more, so that no call is long.
function objects.give_up(object, backend, entries, what, why, attempts, now, most)
  local first, last, lost, letters = nil, nil, 0, {}
  for at = 1, #entries do
    local entry = entries[at]
    -- A gap cannot name an event whose id cannot be read.
    local id = not objects.redriven(entry) and objects.id(entry)
    if id then first, last, lost = first or id, id, lost + 1 end
    letters[at] = text(now) .. ' ' .. text(attempts) .. ' ' .. text(#why) .. ' ' .. why .. entry
    why, attempts = 'its backend was removed', 0
  end
  if lost > 0 then gap(object, first, last, lost, what == 'dead' and 'dead' or 'discarded') end
  if #letters > 0 then
    if what == 'dead' then lists.call('RPUSH', base .. 'dead@' .. backend, letters) end
    objects.count(what == 'dead' and 'dead' or 'discarded', #letters)
    local over = what == 'dead' and redis.call('LLEN', base .. 'dead@' .. backend) - most or 0
    if over > 0 then
      over = math.min(over, 2 * #letters + 100)
      redis.call('LTRIM', base .. 'dead@' .. backend, over, -1)
      objects.count('dead_forgotten', over)
    end
  end
  objects.charge(entries, -1)
  objects.left(object, backend, #letters)
end

-- Makes one event a dead letter.
function objects.bury(object, backend, entry, why, attempts, now, most)
  objects.give_up(object, backend, { entry }, 'dead', why, attempts, now, most)
end

-- Records a failed attempt with the event at the head. Returns the number of failed attempts.
function objects.failed(object, why, now)
  local key = objects.of(object, 'failure')
  redis.call('HSETNX', key, 'since', text(now))
  redis.call('HSET', key, 'why', why)
  objects.count('failed', 1)
  return redis.call('HINCRBY', key, 'attempts', 1)
end

-- What a worker needs to send the event in flight: its entry, the number of earlier attempts, the first failure or 0,
-- and gaps.
function objects.sending(object, entry)
  local failure = redis.call('HMGET', objects.of(object, 'failure'), 'attempts', 'since')
  local gaps = redis.pcall('LRANGE', objects.of(object, 'gaps'), 0, -1)
  return { entry, tonumber(failure[1] or 0), tonumber(failure[2] or 0), gaps.err and {} or gaps }
end

-- Whether any of the objects has any of these keys. Usually none has, so one call is enough for all of them.
function objects.any_has(names, ...)
  local keys = {}
  for _, object in ipairs(names) do
    for _, name in ipairs({ ... }) do keys[#keys + 1] = objects.of(object, name) end
  end
  return lists.call('EXISTS', nil, keys) > 0
end

-- The same for several objects, each { object, entry }.
function objects.sendings(list)
  local names, sendings = {}, {}
  for n, one in ipairs(list) do names[n] = one.object end
  local plain = not objects.any_has(names, 'failure', 'gaps')
  for n, one in ipairs(list) do
    sendings[n] = plain and { one.entry, 0, 0, {} } or objects.sending(one.object, one.entry)
  end
  return sendings
end

-- Collects the effects of a call on many objects. `write` writes them, and is called last.
function objects.tally()
  local events, released, holders, backends, order = {}, {}, {}, {}, {}
  local tally = {}

  -- Counts events that have left a queue of the backend.
  function tally.left(backend, count) events[backend] = (events[backend] or 0) + count end

  -- Releases a worker's object.
  function tally.give_back(object, worker, backend)
    released[#released + 1], holders[#holders + 1] = object, worker
    if not backends[backend] then
      backends[backend] = {}
      order[#order + 1] = backend
    end
    table.insert(backends[backend], object)
  end

  local function lower(field, delta)
    if objects.count(field, -delta) <= 0 then redis.call('HDEL', base .. 'numbers', field) end
  end

  function tally.write()
    for backend, count in pairs(events) do lower('events@' .. backend, count) end
    if #released == 0 then return end
    local keys = {}
    for n, object in ipairs(released) do keys[n] = objects.of(object, 'event.worker') end
    lists.call('DEL', nil, keys)
    lists.call('ZREM', base .. 'leases', released)
    lists.call('HDEL', base .. 'workers', holders)
    -- Objects with waiting events are ready, the others idle. One call determines whether there are any.
    local some = objects.any_has(released, 'events')
    for _, backend in ipairs(order) do
      local ready, idle = {}, {}
      for _, object in ipairs(backends[backend]) do
        local waits = some and redis.call('EXISTS', objects.of(object, 'events')) == 1
        table.insert(waits and ready or idle, object)
      end
      if #ready > 0 then make_all_ready(ready, backend) end
      if #idle > 0 then
        lists.call('HDEL', base .. 'queued', idle)
        lower('objects@' .. backend, #idle)
      end
    end
  end
  return tally
end
