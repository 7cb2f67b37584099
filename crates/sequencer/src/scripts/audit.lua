-- Checks the invariants of a part of the objects. Changes nothing.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms after its end by which a lease must have been swept
-- ARGV[3]: string, cursor of the scan, `0` to begin, or `-` to check only the objects that are named below
-- ARGV[4]: integer, approximate number of objects to check
-- ARGV[5...]: string, names of objects
-- Returns an array: the next cursor, how many objects were checked, and an array of findings, each a predicate, its
-- object and what is wrong.
-- Caller: Store::audit

-- The states that an object is in, and when its lease ends if it has one.
local function states_of(objects, object, backend)
  local lease = redis.call('ZSCORE', objects.key('leases'), object)
  local states = {}
  if redis.call('ZSCORE', objects.ready_key(backend), object) then states[#states + 1] = 'ready' end
  if lease then states[#states + 1] = 'leased' end
  if redis.call('ZSCORE', objects.key('retry'), object) then states[#states + 1] = 'retry' end
  if redis.call('ZSCORE', objects.key('parked'), object) then states[#states + 1] = 'parked' end
  return states, lease
end

-- Checks the event in flight.
local function check_flight(objects, object, flight, owner, found)
  local head = redis.call('LINDEX', objects.of(object, 'events'), 0)
  -- A redriven event may follow later ones.
  local one, other = tonumber(head and objects.id(head) or 0), tonumber(objects.id(flight) or 0)
  if head and (one == other or one < other and not objects.redriven(head) and not objects.redriven(flight)) then
    found('O8', object, 'what is in flight is also queued, or behind its time')
  end
  local worker = owner and string.match(owner, '^(.*)/')
  if not worker or redis.call('HGET', objects.key('workers'), worker) ~= object then
    found('O11', object, 'its worker is recorded with another object, or with none')
  end
end

-- Checks an object that has a queue.
local function check(objects, object, backend, overdue, found)
  local owner = redis.call('GET', objects.of(object, 'event.worker'))
  local flight = redis.call('GET', objects.of(object, 'flight'))
  local waiting = redis.call('LLEN', objects.of(object, 'events'))
  local states, lease = states_of(objects, object, backend)
  if #states ~= 1 then
    local list = #states == 0 and 'none' or table.concat(states, ', ')
    found('O6', object, 'it has a backlog and must be in one of ready, leased, retry, parked; it is in ' .. list)
  end
  if waiting == 0 and not flight then found('O6', object, 'it is queued and has no events') end
  if lease and tonumber(lease) < overdue then found('O7', object, 'its lease ended and was not swept') end
  if (lease and true or false) ~= (flight and true or false) then
    found('O8', object, flight and 'an event is in flight without a lease' or 'it is leased and nothing is in flight')
  end
  if flight then check_flight(objects, object, flight, owner, found) end
end

local function main(objects)
  local call = redis.call
  local overdue, findings = objects.now(ARGV[1]) - tonumber(ARGV[2]), {}
  local function found(predicate, object, what) findings[#findings + 1] = { predicate, object, what } end

  if ARGV[3] == '-' then
    for at = 5, #ARGV do
      local backend = call('HGET', KEYS[1], ARGV[at])
      if backend then check(objects, ARGV[at], backend, overdue, found) end
    end
    return { '0', #ARGV - 4, findings }
  end
  local scanned = call('HSCAN', KEYS[1], ARGV[3], 'COUNT', ARGV[4])
  for at = 1, #scanned[2], 2 do check(objects, scanned[2][at], scanned[2][at + 1], overdue, found) end
  return { scanned[1], #scanned[2] / 2, findings }
end
