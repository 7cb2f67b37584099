-- What every script that touches the queue of an object has in common. Not a script of its own: it is appended to
-- those scripts at compile time, which define `main(objects)` (the publish script: `main(lanes, objects, …)`) above.
-- Who uses it says once, with `objects.at`, what the keys begin with. All of them carry the shard's hash tag.
--
-- Of the shard:
--   hash  queued        object -> its backend, while it has a queue
--   zset  objects.with.events@<backend>   objects that can be taken, by turn
--   zset  leases        object -> when its lease ends, unix ms
--   zset  retry         object -> when it is tried again, unix ms
--   zset  parked        object -> since when, unix ms
--   hash  workers       worker -> the object it holds
--   hash  numbers       turn, epoch, counters; `objects@<backend>` and `events@<backend>`: what is queued
--   list  dead@<backend>  what was given up
-- Of an object: `:events` (list, the head comes next), `:flight` (what its worker is sending), `:event.worker`
-- (worker/epoch), `:failure` (hash, of the event at the head), `:gaps` (list), `:last.event.id` (last one sent).
--
-- An object with a queue is in exactly one of ready, leased, retry and parked; what is in flight is not in the list.

local objects = {}
local base
local wake

-- Gaps that one object may have waiting; more are merged into the last.
local GAPS = 64

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

-- Redis does not undo a script that fails half-way, so what a foreign key could break is looked at before the first
-- write: whether the key is absent or of the type.
local function is(kind, key)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end

local function expect(kind, key)
  if not is(kind, key) then error({ err = 'WRONGTYPE ' .. key .. ' is no ' .. kind }) end
end

-- Some keys of the shard.
function objects.expect(kind, ...)
  for n = 1, select('#', ...) do expect(kind, base .. select(n, ...)) end
end

-- A backend's line, once in a call.
local looked_at = {}
function objects.expect_backend(backend)
  if looked_at[backend] then return end
  looked_at[backend] = true
  expect('zset', objects.ready_key(backend))
end

-- The keys of the shard.
function objects.expect_shared()
  expect('hash', base .. 'queued')
  expect('hash', base .. 'workers')
  expect('hash', base .. 'numbers')
  expect('zset', base .. 'leases')
  expect('zset', base .. 'retry')
  expect('zset', base .. 'parked')
end

-- The keys of an object and its backend.
function objects.sound(object, backend)
  return is('zset', objects.ready_key(backend)) and is('list', base .. 'dead@' .. backend)
    and is('list', objects.of(object, 'events')) and is('list', objects.of(object, 'gaps'))
    and is('string', objects.of(object, 'flight')) and is('string', objects.of(object, 'event.worker'))
    and is('hash', objects.of(object, 'failure'))
end

function objects.expect_of(object, backend)
  if not objects.sound(object, backend) then
    error({ err = 'WRONGTYPE a key of the object ' .. object .. ' or of the backend ' .. backend .. ' is of another type' })
  end
end

function objects.count(field, delta)
  return redis.call('HINCRBY', base .. 'numbers', field, text(delta))
end

-- How many events an object has queued, the one in flight included.
function objects.length(object)
  return redis.call('LLEN', objects.of(object, 'events')) + redis.call('EXISTS', objects.of(object, 'flight'))
end

-- The id of an entry, which is an event's JSON and begins with it.
function objects.id(entry) return string.match(entry, '^{"id":(%d+)') end

-- Whether it was a dead letter before: it stands behind later ones, and the gap that named it was told.
function objects.redriven(entry) return string.find(entry, '^{"id":%d+,"redriven":') ~= nil end

-- Lets objects be taken that are in no other state, in this order. Who has found nothing to take sleeps, and is woken.
local function make_all_ready(names, backend)
  local key = objects.ready_key(backend)
  local turn, places = objects.count('turn', #names) - #names, {}
  for n = 1, #names do places[2 * n - 1], places[2 * n] = text(turn + n), names[n] end
  redis.call('ZADD', key, unpack(places))
  if redis.call('ZCARD', key) == #names then wake = 'now' end
end

function objects.make_ready(object, backend) make_all_ready({ object }, backend) end

-- Who sleeps until later than this is told, unless all are woken anyway.
function objects.tell(due) wake = wake or text(due) end

-- Puts an object among those that something happens to at `due`. Who sleeps until a later time is told.
function objects.await(set, object, due)
  local key = base .. set
  redis.call('ZADD', key, text(due), object)
  if not wake and redis.call('ZRANK', key, object) == 0 then objects.tell(due) end
end

-- To be called last: wakes sleepers, once for the call.
function objects.finish()
  if wake then redis.call('PUBLISH', base .. 'wake', wake) end
end

-- Appends events to queues. Each put is { object, backend, entries, queued }: the backend is where the object's queue
-- goes already (`queued`) or, if it has none, the one that its name belongs to. An object comes once.
function objects.enqueue(puts)
  local events, fields, fresh = {}, {}, {}
  for _, put in ipairs(puts) do
    redis.call('RPUSH', objects.of(put.object, 'events'), unpack(put.entries))
    local backend = put.backend
    events[backend] = (events[backend] or 0) + #put.entries
    if not put.queued then
      fields[#fields + 1], fields[#fields + 2] = put.object, backend
      fresh[backend] = fresh[backend] or {}
      table.insert(fresh[backend], put.object)
    end
  end
  for backend, count in pairs(events) do objects.count('events@' .. backend, count) end
  if #fields > 0 then redis.call('HSET', base .. 'queued', unpack(fields)) end
  for backend, names in pairs(fresh) do
    objects.count('objects@' .. backend, #names)
    make_all_ready(names, backend)
  end
end

-- Records that a range of an object's events is not known delivered.
local function gap(object, first, last, count, reason)
  local key = objects.of(object, 'gaps')
  -- It may have been left behind by a backend that was removed, and then it was to end some day.
  redis.call('PERSIST', key)
  if redis.call('RPUSH', key, first .. ' ' .. last .. ' ' .. text(count) .. ' ' .. reason) > GAPS then
    local newer, older = redis.call('RPOP', key), redis.call('RPOP', key)
    local f1, _, c1, why = string.match(older, '^(%d+) (%d+) (%d+) (.*)$')
    local _, l2, c2 = string.match(newer, '^(%d+) (%d+) (%d+) ')
    redis.call('RPUSH', key, f1 .. ' ' .. l2 .. ' ' .. text(c1 + c2) .. ' ' .. why)
  end
end

-- Whether the lease is still the worker's: nobody took it over, and it was not given back.
function objects.holds(object, owner)
  return redis.call('GET', objects.of(object, 'event.worker')) == owner
end

-- Ends a lease. Its first write is allowed at the memory limit and so makes everything after it allowed.
function objects.let_go(object, worker)
  redis.call('ZREM', base .. 'leases', object)
  redis.call('DEL', objects.of(object, 'event.worker'))
  redis.call('HDEL', base .. 'workers', worker)
end

-- Puts what is in flight back to the head of its queue.
function objects.put_back(object)
  local key = objects.of(object, 'flight')
  local entry = redis.call('GET', key)
  if entry then
    redis.call('DEL', key)
    redis.call('LPUSH', objects.of(object, 'events'), entry)
  end
  return entry
end

-- What becomes of an object that is in no state any more: ready if something waits, else idle.
function objects.settle(object, backend)
  if redis.call('EXISTS', objects.of(object, 'events')) == 1 then
    return objects.make_ready(object, backend)
  end
  redis.call('HDEL', base .. 'queued', object)
  if objects.count('objects@' .. backend, -1) <= 0 then redis.call('HDEL', base .. 'numbers', 'objects@' .. backend) end
end

-- So many events have left the object's queue, one way or the other.
function objects.left(object, backend, events)
  redis.call('DEL', objects.of(object, 'failure'))
  if objects.count('events@' .. backend, -events) <= 0 then
    redis.call('HDEL', base .. 'numbers', 'events@' .. backend)
  end
end

-- Gives events from the head of an object's queue up: dead letters if they are to be (`dead`), and a gap that the
-- object's next event tells. `why` and `attempts` are those of the first.
function objects.give_up(object, backend, entries, what, why, attempts, now)
  local first, last, lost, letters = nil, nil, 0, {}
  for at = 1, #entries do
    local entry = entries[at]
    if not objects.redriven(entry) then
      last = objects.id(entry)
      first, lost = first or last, lost + 1
    end
    letters[at] = text(now) .. ' ' .. text(attempts) .. ' ' .. text(#why) .. ' ' .. why .. entry
    why, attempts = 'its backend was removed', 0
  end
  if lost > 0 then gap(object, first, last, lost, what == 'dead' and 'dead' or 'discarded') end
  if #letters > 0 then
    if what == 'dead' then redis.call('RPUSH', base .. 'dead@' .. backend, unpack(letters)) end
    objects.count(what == 'dead' and 'dead' or 'discarded', #letters)
  end
  objects.left(object, backend, #letters)
end

-- Gives one event up as a dead letter; of these a backend has at most `most`.
function objects.bury(object, backend, entry, why, attempts, now, most)
  objects.give_up(object, backend, { entry }, 'dead', why, attempts, now)
  redis.call('LTRIM', base .. 'dead@' .. backend, -most, -1)
end

-- A failed attempt with the event at the head: how many there were, this one included.
function objects.failed(object, why, now)
  local key = objects.of(object, 'failure')
  redis.call('HSETNX', key, 'since', text(now))
  redis.call('HSET', key, 'why', why)
  objects.count('failed', 1)
  return redis.call('HINCRBY', key, 'attempts', 1)
end

-- What a worker needs to send what is in flight: id-bearing entry, attempts before, first failure or 0, gaps.
function objects.sending(object, entry)
  local failure = redis.call('HMGET', objects.of(object, 'failure'), 'attempts', 'since')
  local gaps = redis.pcall('LRANGE', objects.of(object, 'gaps'), 0, -1)
  return { entry, tonumber(failure[1] or 0), tonumber(failure[2] or 0), gaps.err and {} or gaps }
end

-- Whether any of the objects has any of these keys: for most there is nothing to read, and one look says so for all.
function objects.any_has(names, ...)
  local keys = {}
  for _, object in ipairs(names) do
    for _, name in ipairs({ ... }) do keys[#keys + 1] = objects.of(object, name) end
  end
  return redis.call('EXISTS', unpack(keys)) > 0
end

-- The same for many, each { object, entry }.
function objects.sendings(list)
  local names, sendings = {}, {}
  for n, one in ipairs(list) do names[n] = one.object end
  local plain = not objects.any_has(names, 'failure', 'gaps')
  for n, one in ipairs(list) do
    sendings[n] = plain and { one.entry, 0, 0, {} } or objects.sending(one.object, one.entry)
  end
  return sendings
end

-- What a call does to many objects, written together by `write`, which comes last.
function objects.tally()
  local events, released, holders, backends, order = {}, {}, {}, {}, {}
  local tally = {}

  -- So many events have left a queue of the backend.
  function tally.left(backend, count) events[backend] = (events[backend] or 0) + count end

  -- A worker gives its object back.
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
    redis.call('DEL', unpack(keys))
    redis.call('ZREM', base .. 'leases', unpack(released))
    redis.call('HDEL', base .. 'workers', unpack(holders))
    -- Those of which something waits are ready, the others idle. One look says whether it is any.
    local some = objects.any_has(released, 'events')
    for _, backend in ipairs(order) do
      local ready, idle = {}, {}
      for _, object in ipairs(backends[backend]) do
        local waits = some and redis.call('EXISTS', objects.of(object, 'events')) == 1
        table.insert(waits and ready or idle, object)
      end
      if #ready > 0 then make_all_ready(ready, backend) end
      if #idle > 0 then
        redis.call('HDEL', base .. 'queued', unpack(idle))
        lower('objects@' .. backend, #idle)
      end
    end
  end
  return tally
end
