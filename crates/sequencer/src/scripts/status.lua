-- Reads the state of an object, as of one moment.
-- KEYS[1]: hash, object -> its backend
-- KEYS[2]: hash, object -> its last id and topics
-- KEYS[3]: hash, the same, of objects without recent events
-- ARGV[1]: string, the object
-- Returns an array: its state or false, its last id and topics or false, its backend or false, events
-- waiting, the event in flight or false, worker/epoch or false, when the lease ends, when it is tried again, since when
-- it is parked (each false if not), attempts with the event at the head, why the last one failed or false, the last id
-- sent or false, the entry at the head of the list or false.
-- Caller: Store::status

local function main(objects)
  local call = redis.call
  local object = ARGV[1]
  local failure = call('HMGET', objects.of(object, 'failure'), 'attempts', 'why')
  return {
    call('GET', objects.of(object, 'data')),
    call('HGET', KEYS[2], object) or call('HGET', KEYS[3], object),
    call('HGET', KEYS[1], object),
    call('LLEN', objects.of(object, 'events')),
    call('GET', objects.of(object, 'flight')),
    call('GET', objects.of(object, 'event.worker')),
    call('ZSCORE', objects.key('leases'), object),
    call('ZSCORE', objects.key('retry'), object),
    call('ZSCORE', objects.key('parked'), object),
    tonumber(failure[1] or 0),
    failure[2],
    call('GET', objects.of(object, 'last.event.id')),
    call('LINDEX', objects.of(object, 'events'), 0),
  }
end
