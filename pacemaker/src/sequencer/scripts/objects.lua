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

-- Lets an object be taken that is in no other state. Who has found nothing to take sleeps, and is woken.
function objects.make_ready(object, backend)
  local key = objects.ready_key(backend)
  redis.call('ZADD', key, text(objects.count('turn', 1)), object)
  if redis.call('ZCARD', key) == 1 then wake = 'now' end
end

-- Puts an object among those that something happens to at `due`. Who sleeps until a later time is told.
function objects.await(set, object, due)
  local key = base .. set
  redis.call('ZADD', key, text(due), object)
  if not wake and redis.call('ZRANK', key, object) == 0 then wake = text(due) end
end

-- To be called last: wakes sleepers, once for the call.
function objects.finish()
  if wake then redis.call('PUBLISH', base .. 'wake', wake) end
end

-- Appends entries to an object's queue. `backend` is where it goes: the one that its queue goes to already, if there
-- is one, else the one that its name belongs to.
function objects.enqueue(object, backend, entries)
  redis.call('RPUSH', objects.of(object, 'events'), unpack(entries))
  objects.count('events@' .. backend, #entries)
  if redis.call('HSETNX', base .. 'queued', object, backend) == 1 then
    objects.count('objects@' .. backend, 1)
    objects.make_ready(object, backend)
  end
end

-- Records that a range of an object's events is not known delivered.
local function gap(object, first, last, count, reason)
  local key = objects.of(object, 'gaps')
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

-- An event has left its queue, one way or the other.
function objects.left(object, backend)
  redis.call('DEL', objects.of(object, 'failure'))
  if objects.count('events@' .. backend, -1) <= 0 then redis.call('HDEL', base .. 'numbers', 'events@' .. backend) end
end

-- Gives an event up: a dead letter, and a gap that the object's next event tells.
function objects.bury(object, backend, entry, why, attempts, now, most)
  local id = objects.id(entry)
  gap(object, id, id, 1, 'dead')
  local key = base .. 'dead@' .. backend
  redis.call('RPUSH', key, text(now) .. ' ' .. text(attempts) .. ' ' .. text(#why) .. ' ' .. why .. entry)
  redis.call('LTRIM', key, -most, -1)
  objects.left(object, backend)
  objects.count('dead', 1)
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
  return { entry, tonumber(failure[1] or 0), tonumber(failure[2] or 0),
    redis.call('LRANGE', objects.of(object, 'gaps'), 0, -1) }
end
