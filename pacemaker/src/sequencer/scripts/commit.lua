-- Records that the event in flight was sent, and either goes on with the object's next one or gives the object back.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3]: string, the object
-- ARGV[4]: string, the worker
-- ARGV[5]: integer, epoch of its lease
-- ARGV[6]: integer, id of the event
-- ARGV[7]: integer, gaps that were told with it
-- ARGV[8]: 1 to go on with the next event, 0 to give the object back
-- ARGV[9]: integer, ms for which an object's last id is kept
-- Returns an array: `next` and then what `objects.sending` says of the next event; or `done`; or `lost`, when the
-- lease is another's by now: nothing was recorded. A repeat whose first reply was lost gets what is in flight now.
-- Caller: Store::commit

local function main(objects)
  local call = redis.call
  objects.at(string.match(KEYS[1], '^(.*)queued$'))
  local object, worker = ARGV[3], ARGV[4]
  if not objects.holds(object, worker .. '/' .. ARGV[5]) then return { 'lost' } end
  local backend = call('HGET', KEYS[1], object)
  local flight = call('GET', objects.of(object, 'flight'))
  if not backend or not flight then return { 'lost' } end
  if objects.id(flight) ~= ARGV[6] then return { 'next', objects.sending(object, flight) } end
  objects.expect_shared()
  objects.expect_of(object, backend)
  local now = objects.now(ARGV[1])

  -- The first write is allowed at the memory limit.
  call('DEL', objects.of(object, 'flight'))
  call('SET', objects.of(object, 'last.event.id'), ARGV[6], 'PX', ARGV[9])
  if tonumber(ARGV[7]) > 0 then call('LTRIM', objects.of(object, 'gaps'), ARGV[7], -1) end
  objects.left(object, backend)
  objects.count('sent', 1)
  local entry = ARGV[8] == '1' and call('LPOP', objects.of(object, 'events'))
  if entry then
    call('SET', objects.of(object, 'flight'), entry)
    call('ZADD', objects.key('leases'), objects.text(now + tonumber(ARGV[2])), object)
    return { 'next', objects.sending(object, entry) }
  end
  objects.let_go(object, worker)
  objects.settle(object, backend)
  objects.finish()
  return { 'done' }
end
