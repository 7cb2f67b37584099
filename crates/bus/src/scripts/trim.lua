-- Removes segments of the log that no batch and no queue needs.
-- KEYS[1]: zset, index of batches
-- KEYS[2]: hash, segment -> bytes
-- KEYS[3]: hash, segment -> messages of queues whose bodies are there
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2...]: segments, numbers
-- Returns how many were removed.
-- Caller: Store::trim

local base = string.match(KEYS[1], '^(.*)batches:index$')
local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- A batch's events are in the segment of its creation or in later ones: ids are never behind the clock that stamped the
-- batch, and the bodies of events that are appended again are stored again.
local needed = tonumber(now)
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if oldest[2] and tonumber(oldest[2]) < needed then needed = tonumber(oldest[2]) end
needed = math.floor((needed - 1704067200000) / 10000)

-- Subtracts what a segment stores for each environment from the counts (see publish_quota.lua).
local function discharge(segment)
  local found = redis.call('HGETALL', segment .. ':environments')
  for i = 1, #found, 2 do
    if redis.call('HINCRBY', base .. 'environments', found[i], '-' .. found[i + 1]) <= 0 then
      redis.call('HDEL', base .. 'environments', found[i])
    end
  end
end

local forgotten = 0
for i = 2, #ARGV do
  if tonumber(ARGV[i]) < needed and redis.call('HEXISTS', KEYS[3], ARGV[i]) == 0 then
    -- These keys are in the same slot, and only the caller's list names them.
    local segment = base .. 'log:' .. ARGV[i]
    discharge(segment)
    redis.call('UNLINK', segment, segment .. ':order', segment .. ':environments')
    redis.call('HDEL', KEYS[2], ARGV[i])
    forgotten = forgotten + 1
  end
end
return forgotten
