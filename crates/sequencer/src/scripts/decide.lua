-- Carries out an operator's decision about an object whose event was not accepted: try it again now, or drop the event.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the object
-- ARGV[3]: string, `unpark` or `skip`
-- ARGV[4]: integer, maximum number of dead letters of a backend
-- ARGV[5]: integer, id of the event that is to be skipped; empty for `unpark`
-- Returns `done`; `idle` when it has no queue; `ready` when it is neither parked nor waiting for a retry, so that there
-- is nothing to decide; `leased` when its event is being sent; `other` when another event is at the head, as after a
-- skip whose reply was lost.
-- Caller: Store::decide

local function main(objects)
  local call = redis.call
  local object = ARGV[2]
  local backend = call('HGET', KEYS[1], object)
  if not backend then return 'idle' end
  if call('EXISTS', objects.of(object, 'event.worker')) == 1 then return 'leased' end
  objects.expect_shared()
  objects.expect_of(object, backend)
  local now = objects.now(ARGV[1])
  local head = call('LINDEX', objects.of(object, 'events'), 0)
  if ARGV[3] == 'skip' and (not head or (objects.id(head) or '0') ~= ARGV[5]) then return 'other' end
  if call('ZREM', objects.key('parked'), object) + call('ZREM', objects.key('retry'), object) == 0 then
    return 'ready'
  end
  if ARGV[3] == 'skip' then
    local entry = call('LPOP', objects.of(object, 'events'))
    if entry then
      local failure = call('HMGET', objects.of(object, 'failure'), 'attempts', 'why')
      objects.bury(object, backend, entry, failure[2] or 'skipped', tonumber(failure[1] or 0), now, tonumber(ARGV[4]))
    end
  else
    call('DEL', objects.of(object, 'failure'))
  end
  objects.settle(object, backend)
  return 'done'
end
