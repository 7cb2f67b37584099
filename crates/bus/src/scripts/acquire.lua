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
-- calls again. A batch has up to 10,000 events, so without these limits a call could block Redis for long.
local MAX_EVENTS, MAX_TRIES = 2000, 500

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

-- The job for the worker; nil if its lane is empty, or waits for an older generation.
local function open_job(lanes, worker, job, held)
  local token, generation, number = lane_of(lanes, job)
  if not token then return nil end
  local name = generation .. '.' .. number
  local ready = lanes.ready_key(token, name)
  local bid = redis.call('LINDEX', ready, 0)
  local promote = not bid
  if promote then
    bid = redis.call('HGET', lanes.current_key(token), name)
    if not bid then
      redis.call('SREM', KEYS[4], job)
      lanes.next_in_line(token)
      return nil
    end
  end
  if not held and lanes.must_wait(token, generation) then
    redis.call('SADD', lanes.waiting_key(token), job)
    lanes.next_in_line(token)
    return nil
  end
  if promote then
    redis.call('HDEL', lanes.current_key(token), name, name .. ':bytes')
    redis.call('RPUSH', ready, bid)
  end
  local known = redis.call('HMGET', lanes.base .. 'subscriber:' .. token, 'health_points', 'kicks')
  return { worker, job, token, generation, number, bid, known[1] or '100', known[2] or '0',
    redis.call('LRANGE', lanes.batch_key(bid), 0, -1), redis.call('LRANGE', lanes.gaps_key(token, name), 0, -1) }
end

-- The next job: one that waits for a slow delivery if one may begin, otherwise an instant one.
local function next_job(lanes, left)
  local job = left.places > 0 and redis.call('LPOP', lanes.slow_key)
  if not job then return redis.call('LPOP', KEYS[6]) end
  left.places = left.places - 1
  return job
end

-- Takes a job for a worker: the one that it holds already, or the next one.
local function take(lanes, worker, now, left)
  local pending = lanes.pending_key(worker)
  local own = redis.call('LINDEX', pending, 0)
  if own then
    local entry = open_job(lanes, worker, own, true)
    if entry then return entry end
    lanes.let_go(worker)
  end
  -- If a job has no batch, its worker tries the next one.
  while left.tries > 0 do
    local job = next_job(lanes, left)
    if not job then return nil end
    local entry = open_job(lanes, worker, job, false)
    if entry then
      redis.call('RPUSH', pending, job, entry[8])
      redis.call('SADD', KEYS[7], worker)
      redis.call('HSET', KEYS[8], worker, lanes.text(now))
      return entry
    end
    left.tries = left.tries - 1
  end
end

local function main(lanes)
  local now = lanes.now(ARGV[1])
  promote_due(lanes, now, tonumber(ARGV[2]))
  local reply, at = { lanes.text(now), '', 0, 0, '' }, 4
  local left = { places = tonumber(ARGV[3]), events = MAX_EVENTS, tries = MAX_TRIES }
  while ARGV[at] and left.events > 0 do
    local entry = take(lanes, ARGV[at], now, left)
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
