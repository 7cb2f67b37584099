-- Removes segments of the log that no batch and no queue needs, a limited part of them in each call.
-- KEYS[1]: hash, segment -> bytes
-- KEYS[2]: hash, segment -> messages of queues whose bodies are there
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum number of segments and of environments in them
-- ARGV[3...]: segments, numbers
-- Returns an array: how many of the list are finished, and how many of these were removed. The next one may be partly done.
-- Caller: Store::trim

local base = string.match(KEYS[1], '^(.*)log$')
local now, left = ARGV[1], tonumber(ARGV[2])
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- New references are only made to the present segment or, while ids are ahead of the clock, to a later one.
local present = math.floor((tonumber(now) - 1704067200000) / 10000)

-- Subtracts what a segment stores for its environments from the counts (see publish_quota.lua), as far as `left` allows.
-- HDEL is first: at its memory limit, Redis rejects commands that need memory unless the script has already written.
local function discharge(segment)
  local cursor = '0'
  repeat
    local scanned = redis.call('HSCAN', segment .. ':environments', cursor, 'COUNT', 100)
    local found = scanned[2]
    cursor = scanned[1]
    for i = 1, #found, 2 do
      redis.call('HDEL', segment .. ':environments', found[i])
      if redis.call('HINCRBY', base .. 'environments', found[i], '-' .. found[i + 1]) <= 0 then
        redis.call('HDEL', base .. 'environments', found[i])
        redis.call('HDEL', base .. 'environments:clients', found[i])
      end
    end
    left = left - 1 - #found / 2
  until cursor == '0' or left <= 0
  return redis.call('EXISTS', segment .. ':environments') == 0
end

-- A segment whose bytes cannot be read stays, so that it does not keep the others from being removed.
local function is_readable(segment)
  local found = redis.call('TYPE', segment .. ':environments').ok
  return found == 'none' or found == 'hash'
end

local removed = 0
for i = 3, #ARGV do
  if left <= 0 then return { i - 3, removed } end
  -- These keys are in the same slot, and only the caller's list names them.
  local segment = base .. 'log:' .. ARGV[i]
  left = left - 1
  if tonumber(ARGV[i]) < present and redis.call('HEXISTS', KEYS[2], ARGV[i]) == 0
    and redis.call('EXISTS', segment .. ':held') == 0 and is_readable(segment) then
    if not discharge(segment) then return { i - 3, removed } end
    redis.call('UNLINK', segment, segment .. ':order', segment .. ':uses', segment .. ':bytes')
    redis.call('HDEL', KEYS[1], ARGV[i])
    removed = removed + 1
  end
end
return { #ARGV - 2, removed }
