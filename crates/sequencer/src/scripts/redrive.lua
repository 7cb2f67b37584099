-- Puts dead letters of a backend back into the queues of their objects: behind the waiting events, and marked, because
-- they are delivered out of the order of ids.
-- KEYS[1]: hash, object -> its backend
-- KEYS[2]: hash, the registry of this shard
-- ARGV[1]: string, the registry's stamp that the caller found the backend under
-- ARGV[2]: string, the backend
-- ARGV[3]: integer, maximum number of events in the queue of one object
-- ARGV[4...]: for each letter its object, the letter as it is in the list, and the entry with its mark
-- Returns an array: how many were put back, and how many were left because the object's queue is full or one of its
-- keys is of another type; or twice -1 when the registry has another stamp. A missing letter was put back by an
-- earlier call whose reply was lost, or was dropped.
-- Caller: Store::redrive

local function main(objects)
  local call = redis.call
  if call('HGET', KEYS[2], 'stamp') ~= ARGV[1] then return { -1, -1 } end
  objects.expect_shared()
  local dead = objects.key('dead@' .. ARGV[2])
  local most = tonumber(ARGV[3])
  local put, left = 0, 0
  for at = 4, #ARGV, 3 do
    local object = ARGV[at]
    -- An object with a queue keeps its backend until the queue is empty.
    local queued = call('HGET', KEYS[1], object)
    local backend = queued or ARGV[2]
    if not objects.is_consistent(object, ARGV[2]) or not objects.is_consistent(object, backend)
      or objects.length(object) >= most then
      left = left + 1
    elseif call('LREM', dead, 1, ARGV[at + 1]) == 1 then
      objects.enqueue({ { object = object, backend = backend, entries = { ARGV[at + 2] }, queued = queued } })
      objects.charge({ ARGV[at + 2] }, 1)
      put = put + 1
    end
  end
  if put > 0 then objects.count('redriven', put) end
  return { put, left }
end
