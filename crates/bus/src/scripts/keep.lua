-- Marks a subscriber's waiting events whose bodies are in some segments of the log, so that these can be removed: what is marked is
-- moved to the part that is kept for subscribers to which nothing can be delivered (segment 0, see batches.lua) by trim.lua, and the
-- rest is freed. Marking stores no bodies: it needs about a hundred bytes for each event. Or measures what waits. It searches a part of
-- the lanes. The batch in flight stays as it is, because its worker may be reading the bodies.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token
-- ARGV[2]: integer, events to search in this call; a batch counts as one more
-- ARGV[3]: integer, bytes of the events to mark in this call (one event is always marked); empty to measure, which writes nothing
-- ARGV[4-7]: the cursor: generation, lane, place of a batch in its lane, events of it that were searched; all empty to begin
-- ARGV[8...]: strings, the segments that are to be free; none to measure
-- Returns an array: bytes that were marked or measured, and the cursor, all empty at the end. Batches that leave their lane between
-- two calls shift the places, so that the search may pass over some.
-- Caller: Store::keep_part, Store::measure_part

-- Maximum number of events that a call marks.
local MAX_MARKS = 400
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

-- The tenant of an event: the first member with this name. Earlier releases stored it as the environment. See objects.lua.
local function tenant_of(body)
  local _, from = string.find(body, '"tenant":"', 1, true)
  -- The tenant is before the data, so usually only the beginning is searched.
  local _, old = string.find(from and string.sub(body, 1, from) or body, '"environment":"', 1, true)
  from = old or from
  if not from then return '' end
  local at, is_end = from, false
  repeat
    at = string.find(body, '["\\]', at + 1)
    if not at then return '' end
    is_end = string.sub(body, at, at) == '"'
    if not is_end then at = at + 1 end
  until is_end
  return (string.gsub(string.sub(body, from + 1, at - 1), '\\(.)', '%1'))
end

-- Finds what is to be marked, as far as the bytes allow. Returns the next cursor.
local function find(lanes, token, wanted, left, marks)
  return search(lanes, token, jobs_in_flight(lanes), left, function(item, key, index)
    local id, home = lanes.item(item)
    local body = wanted[home] and redis.call('HGET', lanes.base .. 'log:' .. home, id)
    if not body then return true end
    left.bytes = left.bytes - #body
    if #marks == MAX_MARKS or left.bytes < 0 and #marks > 0 then return false end
    marks[#marks + 1] = { key = key, index = index, item = item, id = id, home = home, size = #body,
      new = string.find(item, '@', 1, true) and id .. '@0' or '-' .. id,
      tenant = tenant_of(body) }
    return true
  end)
end

-- Measures what waits. Returns the next cursor, and the bytes.
local function measure(lanes, token, left)
  local bytes = 0
  local cursor = search(lanes, token, {}, left, function(item)
    bytes = bytes + lanes.body_size(lanes.item(item))
    return true
  end)
  return cursor, bytes
end

-- Marks events, and changes their items. Returns their bytes.
local function mark(lanes, token, marks)
  local call, log = redis.call, lanes.base .. 'log:0'
  local ids, released, homes, marked = {}, {}, {}, 0
  for i, one in ipairs(marks) do ids[i], released[i], homes[one.home] = one.id, one.item, 0 end
  for home in pairs(homes) do lanes.expect('hash', lanes.base .. 'log:' .. home .. ':held') end
  local known = lanes.kept_events(ids)
  for _, one in ipairs(marks) do
    local event = known[one.id]
    -- Otherwise another item needs it, too.
    if event.count == 0 then
      event.size, event.home, event.tenant = one.size, one.home, one.tenant
      homes[one.home] = homes[one.home] + 1
    end
    event.count, marked = event.count + 1, marked + event.size
  end
  -- Redis accepts this at its memory limit, and then everything after it. Much more is freed by it soon.
  call('HDEL', log, '')
  lanes.keep_events(known)
  for _, one in ipairs(marks) do call('LSET', one.key, one.index, one.new) end
  call('HINCRBY', log .. ':held', token, #marks)
  call('HINCRBY', log .. ':bytes', token, marked)
  -- The name of no subscriber: the segment has so many marked events, and stays until these are moved.
  for home, count in pairs(homes) do call('HINCRBY', lanes.base .. 'log:' .. home .. ':held', '', count) end
  lanes.release(token, released)
  return marked
end

local function main(lanes)
  local token, left, wanted, marks = ARGV[1], { events = tonumber(ARGV[2]), bytes = tonumber(ARGV[3]) }, {}, {}
  for at = 8, #ARGV do wanted[ARGV[at]] = true end
  if not left.bytes then
    local cursor, bytes = measure(lanes, token, left)
    return { bytes, cursor[1], cursor[2], cursor[3], cursor[4] }
  end
  local log = lanes.base .. 'log:0'
  lanes.expect('hash', log, log .. ':uses', log .. ':held', log .. ':bytes')
  local cursor = find(lanes, token, wanted, left, marks)
  local marked = #marks > 0 and mark(lanes, token, marks) or 0
  return { marked, cursor[1], cursor[2], cursor[3], cursor[4] }
end
