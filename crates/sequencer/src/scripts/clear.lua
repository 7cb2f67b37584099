-- Removes a backend, part by part: drops the events that are queued for it, or only reports whether there are any.
-- KEYS[1]: hash, object -> its backend
-- KEYS[2]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp under which the backend takes no new objects
-- ARGV[3]: string, the backend
-- ARGV[4]: string, the treatment of its events: `dead` (dead letters), `discard` (nothing) or `send` (only report)
-- ARGV[5]: string, cursor of the scan of the objects, `0` to begin
-- ARGV[6]: integer, approximate number of objects to read
-- ARGV[7]: integer, maximum number of events to drop
-- ARGV[8]: integer, ms for which an object keeps its gaps
-- ARGV[9]: integer, maximum number of dead letters of a backend
-- Returns an array: the next cursor (`0` at the end), events dropped in this call, objects that the backend still has.
-- The last is -1 when the registry of this shard has another stamp: nothing was done.
-- Caller: Store::clear

local function main(objects)
  local call = redis.call
  -- Under this registry the backend accepts no new events and was not defined again.
  if call('HGET', KEYS[2], 'stamp') ~= ARGV[2] then return { ARGV[5], 0, -1 } end
  objects.expect_shared()
  local backend, what = ARGV[3], ARGV[4]
  local function left() return tonumber(call('HGET', objects.key('numbers'), 'objects@' .. backend) or 0) end
  if what == 'send' or left() == 0 then return { '0', 0, left() } end
  local now, most, dropped = objects.now(ARGV[1]), tonumber(ARGV[7]), 0

  -- Ends every state that the object can be in. The event in flight may have been delivered, but its worker has lost
  -- the lease and cannot commit, so the event is dropped with the others.
  local function stop(object)
    local owner = call('GET', objects.of(object, 'event.worker'))
    objects.let_go(object, owner and string.match(owner, '^(.*)/') or '')
    call('ZREM', objects.key('retry'), object)
    call('ZREM', objects.key('parked'), object)
    call('ZREM', objects.ready_key(backend), object)
    objects.put_back(object)
  end

  local scanned = call('HSCAN', KEYS[1], ARGV[5], 'COUNT', ARGV[6])
  for at = 1, #scanned[2], 2 do
    local object = scanned[2][at]
    -- A scan may return an object twice, so its backend is read again.
    if call('HGET', KEYS[1], object) == backend and objects.is_consistent(object, backend) then
      if dropped >= most then return { ARGV[5], dropped, left() } end
      stop(object)
      local entries = call('LRANGE', objects.of(object, 'events'), 0, most - dropped - 1)
      call('LTRIM', objects.of(object, 'events'), #entries, -1)
      local failure = call('HMGET', objects.of(object, 'failure'), 'attempts', 'why')
      local why, attempts = failure[2] or 'its backend was removed', tonumber(failure[1] or 0)
      objects.give_up(object, backend, entries, what, why, attempts, now, tonumber(ARGV[9]))
      call('PEXPIRE', objects.of(object, 'gaps'), ARGV[8])
      dropped = dropped + #entries
      objects.settle(object, backend)
    end
  end
  return { scanned[1], dropped, left() }
end
