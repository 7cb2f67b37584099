-- Puts events that were published before into the lanes of one subscriber again: dead letters that are redriven, or
-- a part of a replay. Their bodies are stored again in the present segment of the log, because their own may be gone.
-- KEYS[1]: zset, index of batches
-- KEYS[2]: hash, events by token
-- KEYS[3]: hash, batches by token
-- KEYS[4]: set, all jobs
-- KEYS[5]: zset, scheduled jobs
-- KEYS[6]: list, instant jobs
-- KEYS[7]: set, workers that hold a job
-- KEYS[8]: hash, heartbeats of workers
-- KEYS[9]: hash, counters
-- KEYS[10]: hash, the registry of this shard
-- KEYS[11]: hash, segment of the log -> bytes
-- KEYS[12]: list, dead letters of the subscriber (redrive); or hash, its replay
-- KEYS[13]: hash, bytes of dead letters by token
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp
-- ARGV[3]: string, sixteen random characters
-- ARGV[4]: integer, bytes of a batch
-- ARGV[5]: string, token
-- ARGV[6]: integer, generation
-- ARGV[7]: integer, concurrency
-- ARGV[8]: integer, most events of a batch
-- ARGV[9]: integer, ms that a batch waits to fill
-- ARGV[10]: string, `redrive` or `replay`
-- ARGV[11]: string, the replay's cursor as it must stand now; empty for redrive
-- ARGV[12]: string, the replay's cursor afterwards; `done` at the end
-- ARGV[13...]: for each event its id, its object's hash, its body, and the dead letter (empty for a replay)
-- Returns how many were put in; -1 when the stamp has moved on, -2 when the cursor is another.
-- Caller: Store::append

local function main(lanes)
  local call = redis.call
  if call('HGET', KEYS[10], 'stamp') ~= ARGV[2] then return -1 end
  local replay = ARGV[10] == 'replay'
  if replay and call('HGET', KEYS[12], 'cursor') ~= ARGV[11] then return -2 end
  local now = lanes.now(ARGV[1])
  local sub = {
    token = ARGV[5], generation = ARGV[6], concurrency = tonumber(ARGV[7]), max = tonumber(ARGV[8]),
    timeout = tonumber(ARGV[9]), bytes = tonumber(ARGV[4]),
  }
  lanes.expect_own()
  lanes.expect('hash', KEYS[11], KEYS[13])
  local segment = lanes.segment((now - 1704067200000) * 6400)
  local log = lanes.base .. 'log:' .. segment
  lanes.expect('hash', log)
  local numbers, buckets = {}, {}
  for at = 13, #ARGV, 4 do
    local number = tonumber(ARGV[at + 1]) % sub.concurrency
    if not buckets[number] then
      buckets[number] = { items = {}, sizes = {} }
      numbers[#numbers + 1] = number
    end
  end
  local states = lanes.plan(sub, numbers)

  local put = 0
  for at = 13, #ARGV, 4 do
    local id, body, letter = ARGV[at], ARGV[at + 2], ARGV[at + 3]
    -- A dead letter that is gone was redriven by an earlier call whose reply was lost, or dropped.
    if replay or call('LREM', KEYS[12], 1, letter) == 1 then
      if not replay then call('HINCRBY', KEYS[13], sub.token, -#letter) end
      local bucket = buckets[tonumber(ARGV[at + 1]) % sub.concurrency]
      call('HSET', log, id, body)
      call('HINCRBY', KEYS[11], segment, #body)
      bucket.items[#bucket.items + 1] = id .. '@' .. segment
      bucket.sizes[#bucket.sizes + 1] = #body
      put = put + 1
    end
  end
  local new_bid = lanes.bids(ARGV[3])
  for i = 1, #numbers do
    local bucket = buckets[numbers[i]]
    if #bucket.items > 0 then lanes.append(states[i], bucket.items, bucket.sizes, now, new_bid) end
  end
  lanes.counted(sub)
  if replay then
    if ARGV[12] == 'done' then call('DEL', KEYS[12]) else call('HSET', KEYS[12], 'cursor', ARGV[12]) end
  end
  call('HINCRBY', KEYS[9], replay and 'events.replayed' or 'events.redriven', put)
  lanes.finish()
  return put
end
