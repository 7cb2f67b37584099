-- Moves bodies of a subscriber's waiting events to the part of the log that is kept for subscribers to which nothing can be
-- delivered (segment 0, see batches.lua), so that it no longer needs other segments; or measures them. It searches a part of the
-- lanes. The batch in flight stays where it is, because its worker may be reading the bodies.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, segment of the log -> bytes
-- ARGV[1]: string, token
-- ARGV[2]: integer, events to search in this call; a batch counts as one more
-- ARGV[3]: integer, bytes to move in this call (one event is always moved); empty to measure, which writes nothing
-- ARGV[4-7]: the cursor: generation, lane, place of a batch in its lane, events of it that were searched; all empty to begin
-- ARGV[8...]: strings, the segments that are to be free; none to measure
-- Returns an array: bytes that were moved or measured, and the cursor, all empty at the end. Batches that leave their lane between
-- two calls shift the places, so that the search may pass over some.
-- Caller: Store::keep_part, Store::measure_part

-- Maximum number of events that a call moves.
local MAX_MOVES = 400
-- Batches of a lane that are read together: to find one in a long list takes time.
local BATCHES = 100

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
  local count, bids, from = redis.call('LLEN', ready), {}, 0
  -- The batch in flight is the first one.
  if cursor.place == 0 and in_flight[lanes.job(token, generation, cursor.lane)] then cursor.place = 1 end
  while cursor.place <= count do
    if cursor.place >= from + #bids then
      from, bids = cursor.place, redis.call('LRANGE', ready, cursor.place, cursor.place + BATCHES - 1)
    end
    local bid = bids[cursor.place - from + 1]
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
  local first = tonumber(ARGV[4])
  for _, generation in ipairs(lanes.generations(token)) do
    local number = tonumber(generation.name)
    if (not first or first <= number) and not lanes.has_ended(token, generation.name) then
      local cursor = { lane = 0, place = 0, searched = 0 }
      if first == number then
        cursor = { lane = tonumber(ARGV[5]), place = tonumber(ARGV[6]), searched = tonumber(ARGV[7]) }
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

-- Finds what is to be moved, as far as the bytes allow. Returns the next cursor.
local function find(lanes, token, wanted, left, moves)
  return search(lanes, token, jobs_in_flight(lanes), left, function(item, key, index)
    local id, home = lanes.item(item)
    local body = wanted[home] and redis.call('HGET', lanes.base .. 'log:' .. home, id)
    if not body then return true end
    left.bytes = left.bytes - #body
    if #moves == MAX_MOVES or left.bytes < 0 and #moves > 0 then return false end
    local mark = string.find(item, '@', 1, true) and '@' or ':'
    moves[#moves + 1] = { key = key, index = index, item = item, new = id .. mark .. '0', id = id, body = body }
    return true
  end)
end

-- Measures what is there. Returns the next cursor, and the bytes.
local function measure(lanes, token, left)
  local bytes = 0
  local cursor = search(lanes, token, {}, left, function(item)
    local id, home = lanes.item(item)
    bytes = bytes + redis.call('HSTRLEN', lanes.base .. 'log:' .. home, id)
    return true
  end)
  return cursor, bytes
end

-- Stores the bodies, and changes the items. Returns the bytes that were moved.
local function move(lanes, token, moves)
  local call, log = redis.call, lanes.base .. 'log:0'
  local ids, released, bodies, moved, added, stored = {}, {}, {}, 0, 0, {}
  for i, one in ipairs(moves) do ids[i], released[i] = one.id, one.item end
  local known = lanes.kept_events(ids)
  for _, one in ipairs(moves) do
    local event = known[one.id]
    -- Otherwise another subscriber waits for it, too.
    if event.count == 0 then
      event.size, event.environment = #one.body, string.match(one.body, '"environment":"([^"]+)"') or ''
      local at = #bodies
      bodies[at + 1], bodies[at + 2] = one.id, one.body
      added = added + event.size
      stored[event.environment] = (stored[event.environment] or 0) + event.size
    end
    event.count, moved = event.count + 1, moved + event.size
  end
  -- Redis accepts this at its memory limit, and then everything after it. What is moved is removed elsewhere soon.
  call('HDEL', log, '')
  lists.call('HSET', log, bodies)
  lanes.keep_events(known)
  for _, one in ipairs(moves) do call('LSET', one.key, one.index, one.new) end
  call('HINCRBY', KEYS[10], '0', added)
  call('HINCRBY', log .. ':held', token, #moves)
  call('HINCRBY', log .. ':bytes', token, moved)
  stored[''] = nil
  for environment, bytes in pairs(stored) do
    call('HINCRBY', lanes.base .. 'environments', environment, bytes)
    call('HINCRBY', log .. ':environments', environment, bytes)
  end
  lanes.release(token, released)
  return moved
end

local function main(lanes)
  local token, left, wanted, moves = ARGV[1], { events = tonumber(ARGV[2]), bytes = tonumber(ARGV[3]) }, {}, {}
  for at = 8, #ARGV do wanted[ARGV[at]] = true end
  if not left.bytes then
    local cursor, bytes = measure(lanes, token, left)
    return { bytes, cursor[1], cursor[2], cursor[3], cursor[4] }
  end
  local log = lanes.base .. 'log:0'
  lanes.expect('hash', KEYS[10], log, log .. ':uses', log .. ':held', log .. ':bytes', log .. ':environments')
  lanes.expect('hash', lanes.base .. 'environments')
  local cursor = find(lanes, token, wanted, left, moves)
  local moved = #moves > 0 and move(lanes, token, moves) or 0
  return { moved, cursor[1], cursor[2], cursor[3], cursor[4] }
end
