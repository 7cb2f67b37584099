-- Removes segments of the log that no batch and no queue needs, a limited part of them in each call. Of a segment with marked events
-- (see keep.lua) these are moved to segment 0, and the others are freed.
-- KEYS[1]: hash, segment -> bytes
-- KEYS[2]: hash, segment -> messages of queues whose bodies are there
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum number of segments, of tenants in them, and of events if some are marked; a kilobyte that is moved
-- counts as one more
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

-- Subtracts what a segment stores for its tenants from the counts (see publish_quota.lua), as far as `left` allows.
-- HDEL is first: at its memory limit, Redis rejects commands that need memory unless the script has already written.
local function discharge(segment)
  local cursor = '0'
  repeat
    local scanned = redis.call('HSCAN', segment .. ':environments', cursor, 'COUNT', 100)
    local found = scanned[2]
    cursor = scanned[1]
    for i = 1, #found, 2 do
      redis.call('HDEL', segment .. ':environments', found[i])
      -- Redis does not accept -0.
      if found[i + 1] ~= '0' and redis.call('HINCRBY', base .. 'environments', found[i], '-' .. found[i + 1]) <= 0 then
        redis.call('HDEL', base .. 'environments', found[i])
        redis.call('HDEL', base .. 'environments:clients', found[i])
      end
    end
    left = left - 1 - #found / 2
  until cursor == '0' or left <= 0
  return redis.call('EXISTS', segment .. ':environments') == 0
end

-- Whether these keys are hashes, or may become some.
local function are_hashes(...)
  for _, key in ipairs({ ... }) do
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= 'hash' then return false end
  end
  return true
end

-- Events that are moved or freed together.
local PART = 100

-- Counts bytes of a tenant for segment 0 instead of a segment. If these were not counted there, they are from now on.
local function transfer(segment, tenant, bytes)
  if tenant == '' then return end
  redis.call('HINCRBY', base .. 'log:0:environments', tenant, bytes)
  local counted = tonumber(redis.call('HGET', segment .. ':environments', tenant) or 0) or 0
  if counted >= bytes then
    redis.call('HINCRBY', segment .. ':environments', tenant, -bytes)
  else
    redis.call('HINCRBY', base .. 'environments', tenant, bytes)
  end
end

-- Moves a marked event to segment 0, unless it is there already. Returns its bytes.
local function move(segment, id, tenant)
  local log, body = base .. 'log:0', redis.call('HGET', segment, id)
  if not body then return 0 end
  if redis.call('HSETNX', log, id, body) == 1 then
    redis.call('HINCRBY', KEYS[1], '0', #body)
    transfer(segment, tenant, #body)
  end
  return #body
end

-- Moves what is marked in a segment, and frees the rest, as far as `left` allows. Each event leaves the segment with its bytes, so any
-- of those that are left continue it. True at the end. HDEL is first, as above.
local function clear(segment, number)
  redis.call('HDEL', segment, '')
  while left > 0 do
    local ids = redis.call('HRANDFIELD', segment, PART)
    if #ids == 0 then
      redis.call('HDEL', segment .. ':held', '')
      return true
    end
    local marks, moved, bytes = lists.read('HMGET', base .. 'log:0:uses', ids), {}, 0
    for i, id in ipairs(ids) do
      if left <= 0 then break end
      local needed, tenant = string.match(marks[i] or '', '^(%d+ %d+) %d+ (.*)$')
      if needed then
        local size = move(segment, id, tenant)
        left, bytes = left - size / 1000, bytes + size
        moved[#moved + 1], moved[#moved + 2] = id, needed .. ' 0 ' .. tenant
      else
        bytes = bytes + redis.call('HSTRLEN', segment, id)
      end
      redis.call('HDEL', segment, id)
      left = left - 1
    end
    lists.call('HSET', base .. 'log:0:uses', moved)
    -- If that fails, the segment counts too much until it has been removed.
    if bytes > 0 then redis.pcall('HINCRBY', KEYS[1], number, -bytes) end
  end
  return false
end

-- Whether batches need the segment. A segment with marked events only is cleared; false as the second value if that has not ended.
local function is_needed(segment, number)
  local held = segment .. ':held'
  if redis.call('EXISTS', held) == 0 then return false, true end
  local log = base .. 'log:0'
  if not are_hashes(held, segment, log, log .. ':uses', log .. ':environments', base .. 'environments') then return true, true end
  if redis.call('HLEN', held) > 1 or redis.call('HEXISTS', held, '') == 0 then return true, true end
  return false, clear(segment, number)
end

local removed = 0
for i = 3, #ARGV do
  if left <= 0 then return { i - 3, removed } end
  -- These keys are in the same slot, and only the caller's list names them.
  local segment = base .. 'log:' .. ARGV[i]
  left = left - 1
  -- A segment whose bytes cannot be read stays, so that it does not keep the others from being removed.
  if tonumber(ARGV[i]) < present and redis.call('HEXISTS', KEYS[2], ARGV[i]) == 0
    and are_hashes(segment .. ':environments', base .. 'environments') then
    local needed, cleared = is_needed(segment, ARGV[i])
    if not cleared or not needed and not discharge(segment) then return { i - 3, removed } end
    if not needed then
      redis.call('UNLINK', segment, segment .. ':order', segment .. ':uses', segment .. ':bytes')
      redis.call('HDEL', KEYS[1], ARGV[i])
      removed = removed + 1
    end
  end
end
return { #ARGV - 2, removed }
