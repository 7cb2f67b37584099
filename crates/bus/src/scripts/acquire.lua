-- Gives jobs to idle workers: makes scheduled jobs that are due instant, and for each worker takes one, with the batch
-- at the head of its lane. A worker that holds a job already (the reply of an earlier call was lost) gets that one.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, maximum number of due jobs to make instant
-- ARGV[3]: integer, number of slow deliveries that may begin; jobs that wait for such a place are taken first
-- ARGV[4...]: strings, idle workers
-- Returns {now, due of the earliest scheduled job or empty, instant jobs left (at least 1 if some workers were not
-- asked), jobs that wait for a slow delivery, the registry's stamp or empty, one {worker, job, token, generation, lane, batch,
-- health, kicks, {items of the batch}, {gaps of the lane}} for each job}.
-- Caller: Store::acquire

-- Events in the batches of a call, after which no more batches are read, and jobs without a batch that a call tries. The caller
-- calls again. A batch has up to 4,000 events, so without these limits a call could block Redis for long.
local MAX_EVENTS, MAX_TRIES = 2000, 500
-- Ms after which a job is tried again whose lane cannot be read.
local BROKEN_PAUSE_MS = 10000

-- Makes due scheduled jobs instant.
local function promote_due(lanes, now, most)
  local due = redis.call('ZRANGE', KEYS[5], '-inf', lanes.text(now), 'BYSCORE', 'LIMIT', 0, most)
  lists.call('ZREM', KEYS[5], due)
  lists.call('RPUSH', KEYS[6], due)
end

-- Token, generation and number of a job's lane. Returns nil for a job that cannot be read, which is removed and
-- counted, so that it does not stop the others.
local function lane_of(lanes, job)
  local readable, what = pcall(cmsgpack.unpack, job)
  if not readable or type(what) ~= 'table' or what[1] ~= 'lane' or type(what[2]) ~= 'table' then
    redis.call('SREM', KEYS[4], job)
    redis.call('HINCRBY', KEYS[9], 'jobs.unreadable', 1)
    return nil
  end
  return what[2][1], lanes.text(what[2][2]), lanes.text(what[2][3])
end

-- What a worker needs to know of a lane. Raises an error if a key that it reads, or that `open_job` then writes to, has another
-- type; it writes nothing.
local function read_lane(lanes, token, generation, name, held)
  local lane = {}
  -- What a lane of a subscription that ended contains is not for the one that the client may have now.
  if not lanes.has_ended(token, generation) then
    lane.bid = redis.call('LINDEX', lanes.ready_key(token, name), 0)
    lane.promote = not lane.bid
    if lane.promote then lane.bid = redis.call('HGET', lanes.current_key(token), name) end
  end
  lane.waits = lane.bid and not held and lanes.must_wait(token, generation)
  if not lane.bid or lane.waits then
    lanes.expect('list', lanes.behind_key(token))
    lanes.expect('set', lanes.waiting_key(token))
  else
    lane.items = redis.call('LRANGE', lanes.batch_key(lane.bid), 0, -1)
    lane.gaps = redis.call('LRANGE', lanes.gaps_key(token, name), 0, -1)
    lane.known = redis.call('HMGET', lanes.base .. 'subscriber:' .. token, 'health_points', 'kicks')
  end
  return lane
end

-- The job for the worker; nil if its lane is empty or has ended, or waits for an older generation, or cannot be read. In the last
-- case the job is tried again later, so that it does not stop the others; `check` reports the lane.
local function open_job(lanes, worker, job, now, held)
  local token, generation, number = lane_of(lanes, job)
  if not token then return nil end
  local name = generation .. '.' .. number
  local is_readable, lane = pcall(read_lane, lanes, token, generation, name, held)
  if not is_readable then
    lanes.schedule(job, now + BROKEN_PAUSE_MS)
    -- The list of jobs behind this one may be what cannot be read.
    pcall(lanes.next_in_line, token)
    return nil
  end
  if not lane.bid then
    redis.call('SREM', KEYS[4], job)
    lanes.next_in_line(token)
    return nil
  end
  if lane.waits then
    redis.call('SADD', lanes.waiting_key(token), job)
    lanes.next_in_line(token)
    return nil
  end
  if lane.promote then
    redis.call('HDEL', lanes.current_key(token), name, name .. ':bytes')
    redis.call('RPUSH', lanes.ready_key(token, name), lane.bid)
  end
  return { worker, job, token, generation, number, lane.bid, lane.known[1] or '100', lane.known[2] or '0', lane.items,
    lane.gaps }
end

-- The next job: one that waits for a slow delivery if one may begin, otherwise an instant one.
local function next_job(lanes, left)
  local job = left.places > 0 and redis.call('LPOP', lanes.slow_key)
  if not job then return redis.call('LPOP', KEYS[6]) end
  left.places = left.places - 1
  return job
end

-- Takes a job for a worker: the one that it holds already (`own`), or the next one.
local function take(lanes, worker, own, now, left)
  if own then
    local entry = open_job(lanes, worker, own, now, true)
    if entry then return entry end
    lanes.let_go(worker)
  end
  -- If a job has no batch, its worker tries the next one.
  while left.tries > 0 do
    local job = next_job(lanes, left)
    if not job then return nil end
    local entry = open_job(lanes, worker, job, now, false)
    if entry then
      redis.call('RPUSH', lanes.pending_key(worker), job, entry[8])
      redis.call('SADD', KEYS[7], worker)
      redis.call('HSET', KEYS[8], worker, lanes.text(now))
      return entry
    end
    left.tries = left.tries - 1
  end
end

local function main(lanes)
  local now, own = lanes.now(ARGV[1]), {}
  lanes.expect_own()
  lanes.expect('list', lanes.slow_key)
  lanes.expect('hash', KEYS[10])
  for at = 4, #ARGV do own[at] = redis.call('LINDEX', lanes.pending_key(ARGV[at]), 0) end

  promote_due(lanes, now, tonumber(ARGV[2]))
  local reply, at = { lanes.text(now), '', 0, 0, '' }, 4
  local left = { places = tonumber(ARGV[3]), events = MAX_EVENTS, tries = MAX_TRIES }
  while ARGV[at] and left.events > 0 do
    local entry = take(lanes, ARGV[at], own[at], now, left)
    if entry then
      reply[#reply + 1] = entry
      -- The first three values of a batch describe it; the events follow.
      left.events = left.events - #entry[9] + 3
    end
    at = at + 1
  end
  reply[2] = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2] or ''
  reply[3], reply[4] = redis.call('LLEN', KEYS[6]), redis.call('LLEN', lanes.slow_key)
  -- The other workers may hold jobs whose reply was lost.
  if ARGV[at] then reply[3] = math.max(reply[3], 1) end
  reply[5] = redis.call('HGET', KEYS[10], 'stamp') or ''
  return reply
end
