-- Removes one event from a subscriber's lanes: it becomes a dead letter, a gap is recorded, and its lane continues
-- immediately. If the event is in flight, it may also be delivered.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: list, dead letters of the subscriber, oldest first
-- KEYS[11]: hash, bytes of dead letters by token
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, token
-- ARGV[3]: integer, ID of the event
-- ARGV[4]: integer, hash of its object
-- ARGV[5]: integer, batches of a lane that are searched
-- ARGV[6]: integer, maximum number of dead letters, events
-- ARGV[7]: integer, maximum size of dead letters, bytes
-- Returns 1, or 0 when the event is in none of these batches (nothing was done).
-- Caller: Store::skip

-- The item of the event in a batch, if it is there.
local function item_of(lanes, bid, wanted)
  local batch = redis.call('LRANGE', lanes.batch_key(bid), 3, -1)
  for i = 1, #batch do
    if lanes.item(batch[i]) == wanted then return batch[i] end
  end
end

-- The batch and the item of the event in a lane.
local function find(lanes, token, name, wanted, most)
  local bids = redis.call('LRANGE', lanes.ready_key(token, name), 0, most - 1)
  bids[#bids + 1] = redis.call('HGET', lanes.current_key(token), name) or nil
  for i = 1, #bids do
    local item = item_of(lanes, bids[i], wanted)
    if item then return bids[i], item end
  end
end

local function main(lanes)
  local token, wanted = ARGV[2], ARGV[3]
  for _, generation in ipairs(lanes.generations(token)) do
    local number = generation.lanes > 0 and tonumber(ARGV[4]) % generation.lanes or 0
    local name = generation.name .. '.' .. number
    local bid, item = find(lanes, token, name, wanted, tonumber(ARGV[5]))
    if bid then
      local _, segment = lanes.item(item)
      local body = redis.call('HGET', lanes.base .. 'log:' .. segment, wanted)
      local attempts = redis.call('LINDEX', lanes.batch_key(bid), 2)
      lanes.expect_own()
      lanes.expect('list', KEYS[10], lanes.gaps_key(token, name))
      lanes.expect('hash', KEYS[11], lanes.generations_key(token), lanes.base .. 'subscriber:' .. token)

      -- If this makes a batch empty, the worker that takes the batch removes it.
      redis.call('LREM', lanes.batch_key(bid), 1, item)
      lanes.count(token, generation.name, -1, 0)
      if body then
        local letter = cmsgpack.pack({ lanes.text(lanes.now(ARGV[1])), attempts or '0', 'skipped', body })
        lanes.keep_dead(KEYS[10], KEYS[11], token, { letter }, tonumber(ARGV[6]), tonumber(ARGV[7]))
      end
      lanes.gap_of(token, name, { item }, 'skipped')
      redis.call('HINCRBY', KEYS[9], 'events.skipped', 1)
      local job = lanes.job(token, generation.name, number)
      if redis.call('ZREM', KEYS[5], job) == 1 then lanes.instant(job) end
      -- If the lane is in flight, it does not pause because of the event that was skipped.
      redis.call('HINCRBY', lanes.base .. 'subscriber:' .. token, 'kicks', 1)
      return 1
    end
  end
  return 0
end
