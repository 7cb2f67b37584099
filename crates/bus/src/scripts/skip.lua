-- Removes one event from a subscriber's lanes: it becomes a dead letter, a gap is recorded, and its lane continues
-- immediately. If the event is in flight, it may also be delivered.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: list, dead letters of the subscriber, oldest first
-- KEYS[11]: hash, bytes of dead letters by token
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, token
-- ARGV[3]: integer, ID of the event
-- ARGV[4]: integer, hash of its object; empty if the object is not known: every lane is searched
-- ARGV[5]: integer, batches of a lane that are searched
-- ARGV[6]: integer, maximum number of dead letters, events
-- ARGV[7]: integer, maximum size of dead letters, bytes
-- ARGV[8]: integer, events that are searched in this call
-- ARGV[9-13]: the cursor: generation, lane, place of a batch in its lane, events of it that were searched, the batch; all empty
-- to begin
-- Returns an array: `done`; or `none` when the event is in none of these batches; or `more` and the cursor; or `moved` when the
-- cursor's batch is at another place by now. Except for `done`, nothing was done.
-- Caller: Store::skip

-- Searches a lane from the cursor on. Returns the batch and the item of the event; or nil, and whether there is more.
local function find(lanes, token, name, cursor, left)
  local ready = lanes.ready_key(token, name)
  local count = math.min(redis.call('LLEN', ready), tonumber(ARGV[5]))
  if cursor.bid and cursor.at > count then return nil, 'moved' end
  -- The last one is the current batch.
  while cursor.at <= count do
    local bid = redis.call('LINDEX', ready, cursor.at)
    if cursor.at == count then bid = redis.call('HGET', lanes.current_key(token), name) end
    if cursor.bid and cursor.bid ~= bid then return nil, 'moved' end
    if not bid then return nil end
    local from = 3 + cursor.searched
    local items = redis.call('LRANGE', lanes.batch_key(bid), from, from + left.count - 1)
    for i = 1, #items do
      if lanes.item(items[i]) == ARGV[3] then return bid, items[i] end
    end
    left.count = left.count - #items - 1
    if left.count <= 0 then
      cursor.bid, cursor.searched = bid, cursor.searched + #items
      return nil, 'more'
    end
    cursor.at, cursor.searched, cursor.bid = cursor.at + 1, 0, nil
  end
end

-- Removes the event. If this makes a batch empty, the worker that takes the batch removes it.
local function remove(lanes, generation, number, bid, item)
  local token, name = ARGV[2], generation .. '.' .. number
  local id, segment = lanes.item(item)
  local body = lanes.body(id, segment)
  local attempts = redis.call('LINDEX', lanes.batch_key(bid), 2)
  lanes.expect_own()
  lanes.expect('list', KEYS[10], lanes.gaps_key(token, name))
  lanes.expect('hash', KEYS[11], lanes.generations_key(token), lanes.base .. 'subscriber:' .. token)

  redis.call('LREM', lanes.batch_key(bid), 1, item)
  lanes.release(token, { item })
  lanes.count(token, generation, -1, 0)
  if body then
    local letter = cmsgpack.pack({ lanes.text(lanes.now(ARGV[1])), attempts or '0', 'skipped', body })
    lanes.keep_dead(KEYS[10], KEYS[11], token, { letter }, tonumber(ARGV[6]), tonumber(ARGV[7]))
  end
  lanes.gap_of(token, name, { item }, 'skipped')
  redis.call('HINCRBY', KEYS[9], 'events.skipped', 1)
  local job = lanes.job(token, generation, number)
  if redis.call('ZREM', KEYS[5], job) == 1 then lanes.instant(job) end
  -- If the lane is in flight, it does not pause because of the event that was skipped.
  redis.call('HINCRBY', lanes.base .. 'subscriber:' .. token, 'kicks', 1)
end

-- The lanes of a generation that may have the event, from the cursor on: the first one and the last one.
local function lanes_of(generation, is_first)
  local hash = tonumber(ARGV[4])
  local lane = hash and (generation.lanes > 0 and hash % generation.lanes or 0)
  return lane or is_first and tonumber(ARGV[10]) or 0, lane or generation.lanes - 1
end

local function main(lanes)
  local left, first = { count = tonumber(ARGV[8]) }, tonumber(ARGV[9])
  for _, generation in ipairs(lanes.generations(ARGV[2])) do
    local is_first = first == tonumber(generation.name)
    if (not first or first <= tonumber(generation.name)) and not lanes.has_ended(ARGV[2], generation.name) then
      local from, to = lanes_of(generation, is_first)
      for number = from, to do
        local cursor = { at = 0, searched = 0 }
        if is_first and number == tonumber(ARGV[10]) then
          cursor = { at = tonumber(ARGV[11]), searched = tonumber(ARGV[12]), bid = ARGV[13] }
        end
        local bid, item = find(lanes, ARGV[2], generation.name .. '.' .. number, cursor, left)
        if bid then
          remove(lanes, generation.name, number, bid, item)
          return { 'done' }
        elseif item == 'moved' then
          return { 'moved' }
        elseif item == 'more' then
          return {
            'more', generation.name, lanes.text(number), lanes.text(cursor.at), lanes.text(cursor.searched), cursor.bid,
          }
        end
      end
    end
  end
  return { 'none' }
end
