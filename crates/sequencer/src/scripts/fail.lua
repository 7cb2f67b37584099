-- Ends a lease without a commit: the event in flight was not accepted, or was not sent.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the object
-- ARGV[3]: string, the worker
-- ARGV[4]: integer, epoch of its lease
-- ARGV[5]: integer, id of the event; 0 if it cannot be read
-- ARGV[6]: string, the next step: `retry` (after a pause), `park` (until an operator decides), `skip` (a dead
-- letter and a gap), `release` (immediately to another worker; no attempt is counted)
-- ARGV[7]: integer, ms of the pause
-- ARGV[8]: string, reason of the failure
-- ARGV[9]: integer, maximum number of dead letters of a backend
-- ARGV[10]: integer, version of the registry from which the backend was read that the event was sent to
-- Returns 1, or 0 when another worker has the lease by now: nothing was changed.
-- Caller: Store::fail

local function main(objects)
  local call = redis.call
  local object, worker, what = ARGV[2], ARGV[3], ARGV[6]
  if not objects.holds(object, worker .. '/' .. ARGV[4]) then return 0 end
  local backend = call('HGET', KEYS[1], object)
  local flight = call('GET', objects.of(object, 'flight'))
  if not backend or not flight or (objects.id(flight) or '0') ~= ARGV[5] then return 0 end
  objects.expect_shared()
  objects.expect_of(object, backend)
  local now = objects.now(ARGV[1])

  objects.let_go(object, worker)
  if what == 'skip' then
    call('DEL', objects.of(object, 'flight'))
    local attempts = objects.failed(object, ARGV[8], now)
    objects.bury(object, backend, flight, ARGV[8], attempts, now, tonumber(ARGV[9]))
    objects.settle(object, backend)
  else
    objects.put_back(object)
    if what == 'release' then
      objects.settle(object, backend)
    else
      objects.failed(object, ARGV[8], now)
      if what == 'park' then
        call('ZADD', objects.key('parked'), objects.text(now), object)
        objects.count('parked', 1)
      else
        -- The failure of a backend that was changed in the meantime does not delay the next attempt.
        local changed = tonumber(call('HGET', objects.key('numbers'), 'changed@' .. backend) or 0)
        local pause = changed > tonumber(ARGV[10]) and 0 or tonumber(ARGV[7])
        objects.await('retry', object, now + pause)
      end
    end
  end
  return 1
end
