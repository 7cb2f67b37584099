-- Stores bodies of a subscriber's waiting events again in the current segment of the log, so that it no longer needs older
-- segments; or measures them. It searches a part of the lanes. The batch in flight is not copied, because its worker may be
-- reading the bodies.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, segment of the log -> bytes
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, token
-- ARGV[3]: integer, events to search in this call; a batch counts as one more
-- ARGV[4]: integer, bytes to copy in this call (one event is always copied); empty to measure, which writes nothing
-- ARGV[5-8]: the cursor: generation, lane, place of a batch in its lane, events of it that were searched; all empty to begin
-- ARGV[9...]: strings, the segments that are to be free; none to measure
-- Returns an array: bytes that were added to the log; the cursor, all empty at the end; and an array of the events that were
-- measured, each as its segment, its ID and its bytes. Batches that leave their lane between two calls shift the places, so that
-- the search may pass over some.
-- Caller: Store::copy_part, Store::measure_part

-- The lanes that are in flight, by job.
local function jobs_in_flight(lanes)
  local found = {}
  for _, worker in ipairs(redis.call('SMEMBERS', KEYS[7])) do
    local job = redis.call('LINDEX', lanes.pending_key(worker), 0)
    if job then found[job] = true end
  end
  return found
end

-- Searches a batch from an event on. Returns how many events were searched, and whether the call has to end after them.
local function search_batch(lanes, bid, searched, left, visit)
  local key = lanes.batch_key(bid)
  local items = redis.call('LRANGE', key, 3 + searched, 2 + searched + math.max(left.events, 1))
  for i = 1, #items do
    if not visit(items[i], key, 2 + searched + i) then return i - 1, true end
  end
  left.events = left.events - #items - 1
  return #items, left.events <= 0
end

-- Searches a lane from the cursor on. Returns whether the call has to end; the cursor then shows where.
local function search_lane(lanes, token, generation, cursor, in_flight, left, visit)
  local name = generation .. '.' .. cursor.lane
  local ready = lanes.ready_key(token, name)
  local count = redis.call('LLEN', ready)
  -- The batch in flight is the first one.
  if cursor.place == 0 and in_flight[lanes.job(token, generation, cursor.lane)] then cursor.place = 1 end
  while cursor.place <= count do
    local bid = redis.call('LINDEX', ready, cursor.place)
    if cursor.place == count then bid = redis.call('HGET', lanes.current_key(token), name) end
    if not bid then break end
    local searched, ends = search_batch(lanes, bid, cursor.searched, left, visit)
    cursor.searched = cursor.searched + searched
    if ends then return true end
    cursor.place, cursor.searched = cursor.place + 1, 0
  end
  cursor.place, cursor.searched = 0, 0
  return false
end

-- Searches the lanes of a subscriber from the cursor in the arguments on. Calls `visit` for each item, until that returns false or
-- nothing is `left`. Returns the next cursor.
local function search(lanes, token, in_flight, left, visit)
  local first = tonumber(ARGV[5])
  for _, generation in ipairs(lanes.generations(token)) do
    local number = tonumber(generation.name)
    if (not first or first <= number) and not lanes.has_ended(token, generation.name) then
      local cursor = { lane = 0, place = 0, searched = 0 }
      if first == number then
        cursor = { lane = tonumber(ARGV[6]), place = tonumber(ARGV[7]), searched = tonumber(ARGV[8]) }
      end
      while cursor.lane < generation.lanes do
        if search_lane(lanes, token, generation.name, cursor, in_flight, left, visit) then
          return { generation.name, lanes.text(cursor.lane), lanes.text(cursor.place), lanes.text(cursor.searched) }
        end
        cursor.lane = cursor.lane + 1
      end
    end
  end
  return { '', '', '', '' }
end

-- Finds what is to be copied, as far as the bytes allow. Returns the next cursor.
local function find(lanes, token, wanted, segment, left, moves)
  return search(lanes, token, jobs_in_flight(lanes), left, function(item, key, index)
    local id, home = lanes.item(item)
    local body = wanted[home] and redis.call('HGET', lanes.base .. 'log:' .. home, id)
    if not body then return true end
    left.bytes = left.bytes - #body
    if left.bytes < 0 and #moves > 0 then return false end
    local mark = string.find(item, '@', 1, true) and '@' or ':'
    moves[#moves + 1] = { key = key, index = index, item = item, new = id .. mark .. segment, id = id, body = body }
    return true
  end)
end

-- Measures what is there. Returns the next cursor, and the events.
local function measure(lanes, token, left)
  local events = {}
  local cursor = search(lanes, token, {}, left, function(item)
    local id, home = lanes.item(item)
    local at = #events
    events[at + 1], events[at + 2] = home, id
    events[at + 3] = redis.call('HSTRLEN', lanes.base .. 'log:' .. home, id)
    return true
  end)
  return cursor, events
end

-- Stores the bodies, and changes the items. Returns the bytes that were added to the log.
local function move(lanes, token, segment, moves)
  local call, log = redis.call, lanes.base .. 'log:' .. segment
  local added, stored, released = 0, {}, {}
  for i, one in ipairs(moves) do
    -- Another subscriber may have copied it.
    if call('HSETNX', log, one.id, one.body) == 1 then
      added = added + #one.body
      local environment = string.match(one.body, '"environment":"([^"]+)"')
      if environment then stored[environment] = (stored[environment] or 0) + #one.body end
    end
    call('LSET', one.key, one.index, one.new)
    released[i] = one.item
  end
  call('HINCRBY', KEYS[10], segment, added)
  call('HINCRBY', log .. ':held', token, #moves)
  for environment, bytes in pairs(stored) do
    call('HINCRBY', lanes.base .. 'environments', environment, bytes)
    call('HINCRBY', log .. ':environments', environment, bytes)
  end
  lanes.release(token, released)
  return added
end

local function main(lanes)
  local token, left, wanted, moves = ARGV[2], { events = tonumber(ARGV[3]), bytes = tonumber(ARGV[4]) }, {}, {}
  for at = 9, #ARGV do wanted[ARGV[at]] = true end
  if not left.bytes then
    local cursor, events = measure(lanes, token, left)
    return { 0, cursor[1], cursor[2], cursor[3], cursor[4], events }
  end
  local segment = lanes.segment((lanes.now(ARGV[1]) - 1704067200000) * 6400)
  wanted[segment] = nil
  local log = lanes.base .. 'log:' .. segment
  lanes.expect('hash', KEYS[10], log, log .. ':held', log .. ':environments', lanes.base .. 'environments')
  local cursor = find(lanes, token, wanted, segment, left, moves)
  local added = #moves > 0 and move(lanes, token, segment, moves) or 0
  return { added, cursor[1], cursor[2], cursor[3], cursor[4], {} }
end
