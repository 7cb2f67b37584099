-- Appends events that were published before to the lanes of one subscriber: dead letters that are redriven, a part of a
-- replay, or one event that is sent again. Their bodies are stored again in the current segment of the log, because the
-- original ones may have been removed.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, the registry of this shard
-- KEYS[11]: hash, segment of the log -> bytes
-- KEYS[12]: list, dead letters of the subscriber (redrive); or hash, its replay
-- KEYS[13]: hash, bytes of dead letters by token
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp
-- ARGV[3]: string, sixteen random characters
-- ARGV[4]: integer, maximum bytes of a batch
-- ARGV[5-9]: the subscriber: token, generation, concurrency, maximum events of a batch, ms that a batch waits to fill
-- ARGV[10]: string, `redrive`, `replay` or `resend`
-- ARGV[11]: string, the replay's cursor as it must be now; empty unless `replay`
-- ARGV[12]: string, the replay's cursor afterwards; `done` at the end
-- ARGV[13...]: for each event its id, its object's hash, its body, the dead letter (empty unless `redrive`), its tenant
-- Returns how many were appended; -1 when the registry has another stamp, -2 when the cursor is another.
-- Caller: Store::append

-- Reads the subscriber.
local function read_subscriber()
  return {
    token = ARGV[5], generation = ARGV[6], concurrency = tonumber(ARGV[7]), max = tonumber(ARGV[8]),
    timeout = tonumber(ARGV[9]), bytes = tonumber(ARGV[4]),
  }
end

-- Reads the events, and a bucket for each lane that gets some. Returns the events, the buckets by lane, and the lanes.
local function read_events(concurrency)
  local events, buckets, numbers = {}, {}, {}
  for at = 13, #ARGV, 5 do
    local number = tonumber(ARGV[at + 1]) % concurrency
    if not buckets[number] then
      buckets[number] = { items = {}, sizes = {}, bytes = 0 }
      numbers[#numbers + 1] = number
    end
    events[#events + 1] = {
      id = ARGV[at], bucket = buckets[number], body = ARGV[at + 2], letter = ARGV[at + 3], tenant = ARGV[at + 4],
    }
  end
  return events, buckets, numbers
end

-- Stores the bodies, and puts the items into their buckets. Returns how many were stored.
local function store(events, base, segment, token, redrive)
  local log = base .. 'log:' .. segment
  local put, stored = 0, {}
  for _, event in ipairs(events) do
    local body, bucket = event.body, event.bucket
    local items, sizes = bucket.items, bucket.sizes
    -- A missing dead letter was redriven by an earlier call whose reply was lost, or dropped.
    if not redrive or redis.call('LREM', KEYS[12], 1, event.letter) == 1 then
      if redrive then redis.call('HINCRBY', KEYS[13], token, -#event.letter) end
      -- The segment may have the event already: from its publisher, or from an earlier call for this or another subscriber.
      if redis.call('HSET', log, event.id, body) == 1 then
        redis.call('HINCRBY', KEYS[11], segment, #body)
        stored[event.tenant] = (stored[event.tenant] or 0) + #body
      end
      items[#items + 1] = event.id .. '@' .. segment
      sizes[#sizes + 1], bucket.bytes = #body, bucket.bytes + #body
      put = put + 1
    end
  end
  for tenant, bytes in pairs(stored) do
    redis.call('HINCRBY', base .. 'environments', tenant, bytes)
    redis.call('HINCRBY', log .. ':environments', tenant, bytes)
  end
  if put > 0 then redis.call('HINCRBY', log .. ':held', token, put) end
  return put
end

local function main(lanes)
  if redis.call('HGET', KEYS[10], 'stamp') ~= ARGV[2] then return -1 end
  local replay, redrive = ARGV[10] == 'replay', ARGV[10] == 'redrive'
  if replay and redis.call('HGET', KEYS[12], 'cursor') ~= ARGV[11] then return -2 end
  local now, sub = lanes.now(ARGV[1]), read_subscriber()
  lanes.expect_own()
  lanes.expect('hash', KEYS[11], KEYS[13])
  local segment = lanes.segment((now - 1704067200000) * 6400)
  local log = lanes.base .. 'log:' .. segment
  lanes.expect('hash', log, log .. ':held', log .. ':environments', lanes.base .. 'environments')
  local events, buckets, numbers = read_events(sub.concurrency)
  -- A part of a replay may have no event of the subscriber's topics.
  local states = #numbers > 0 and lanes.plan(sub, numbers) or {}

  local put, new_bid = store(events, lanes.base, segment, sub.token, redrive), lanes.bids(ARGV[3])
  for i = 1, #numbers do
    local bucket = buckets[numbers[i]]
    if #bucket.items > 0 then lanes.append(states[i], bucket, now, new_bid) end
  end
  lanes.appended(sub)
  if replay then
    if ARGV[12] == 'done' then redis.call('DEL', KEYS[12]) else redis.call('HSET', KEYS[12], 'cursor', ARGV[12]) end
  end
  redis.call('HINCRBY', KEYS[9], redrive and 'events.redriven' or 'events.replayed', put)
  return put
end
