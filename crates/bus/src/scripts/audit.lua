-- Checks the invariants of one subscriber's lanes. Changes nothing.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, the token
-- ARGV[2]: integer, maximum number of batches whose events are counted, and of events whose segments of the log are counted
-- ARGV[3...]: integers, segments of the log that the subscriber seems to need
-- Returns an array of findings, each a predicate, a lane or gauge, and what is wrong: B1, a lane with a batch has
-- exactly one job, and one without has none, or one that can be taken; B2, gauges equal the sums over the batches; B3, a
-- segment of the log counts the events of the batches that need it, and segment 0 their bytes.
-- Caller: Store::audit

-- Jobs in a shared list above which the list is not read. A job that is in no other state is then assumed to be there.
local MAX_LISTED = 1000

-- The number of workers that hold each job.
local function held_jobs(lanes)
  local held = {}
  for _, worker in ipairs(redis.call('SMEMBERS', KEYS[7])) do
    local job = redis.call('LINDEX', lanes.pending_key(worker), 0)
    if job then held[job] = (held[job] or 0) + 1 end
  end
  return held
end

-- How often each job is in the lists of jobs that can be taken, which all subscribers share; nil if these are too long to be
-- read.
local function listed_jobs(lanes)
  local listed = {}
  for _, key in ipairs({ KEYS[6], lanes.slow_key }) do
    if redis.call('LLEN', key) > MAX_LISTED then return nil end
    for _, job in ipairs(redis.call('LRANGE', key, 0, -1)) do listed[job] = (listed[job] or 0) + 1 end
  end
  return listed
end

-- The number of states that a job is in.
local function places_of(lanes, token, job, held, listed)
  local places = (held[job] or 0) + (listed and listed[job] or 0)
    + redis.call('SISMEMBER', lanes.waiting_key(token), job)
    + #redis.call('LPOS', lanes.behind_key(token), job, 'COUNT', 2)
  return redis.call('ZSCORE', KEYS[5], job) and places + 1 or places
end

-- The bytes of the events in the part of the log that is kept for such subscribers.
local kept = 0

-- Counts the events of a batch, and in `needed` how many of them need each segment of the log, unless that is nil.
local function count_events(lanes, bid, needed)
  local key = lanes.batch_key(bid)
  if not needed then return redis.call('LLEN', key) - 3 end
  local items = redis.call('LRANGE', key, 3, -1)
  for i = 1, #items do
    local id, segment = lanes.item(items[i])
    needed[segment] = (needed[segment] or 0) + 1
    if segment == '0' then kept = kept + lanes.body_size(id, segment) end
  end
  return #items
end

-- Checks the job of a lane. Returns the lane's batches, and their events if they are `counted`.
local function check_lane(lanes, token, generation, number, jobs, counted, needed, found)
  local name, events = generation.name .. '.' .. number, 0
  local ready = redis.call('LLEN', lanes.ready_key(token, name))
  local current = redis.call('HGET', lanes.current_key(token), name)
  local job, batches = lanes.job(token, generation.name, number), ready + (current and 1 or 0)
  local expected, places = batches > 0 and 1 or 0, places_of(lanes, token, job, jobs.held, jobs.listed)
  -- The job of a lane whose batches were dropped stays in a shared list until a worker takes it.
  if expected == 0 and redis.call('SISMEMBER', KEYS[4], job) == 1 then expected = 1 end
  local is_unknown = places < expected and not jobs.listed
  if places ~= expected and not is_unknown or redis.call('SISMEMBER', KEYS[4], job) ~= expected then
    found('B1', name, 'lane ' .. name .. ' has ' .. lanes.text(batches) .. ' batches, and its job is in '
      .. lanes.text(places) .. ' states')
  end
  if counted then
    for _, bid in ipairs(redis.call('LRANGE', lanes.ready_key(token, name), 0, -1)) do
      events = events + count_events(lanes, bid, needed)
    end
    if current then events = events + count_events(lanes, current, needed) end
  end
  return batches, events
end

-- Compares a gauge with the sum over the batches.
local function compare(lanes, key, token, what, sum, found)
  local gauge = tonumber(redis.call('HGET', key, token) or 0)
  if gauge ~= sum then
    found('B2', what, 'the gauge counts ' .. lanes.text(gauge) .. ' ' .. what .. ', there are ' .. lanes.text(sum))
  end
end

-- Compares what segments of the log count for the subscriber with `needed`.
local function compare_segments(lanes, token, needed, found)
  for at = 3, #ARGV do needed[ARGV[at]] = needed[ARGV[at]] or 0 end
  for segment, count in pairs(needed) do
    local counted = tonumber(redis.call('HGET', lanes.base .. 'log:' .. segment .. ':held', token) or 0)
    if counted ~= count then
      found('B3', segment, 'segment ' .. segment .. ' of the log counts ' .. lanes.text(counted)
        .. ' waiting events, there are ' .. lanes.text(count))
    end
  end
  local bytes = tonumber(redis.call('HGET', lanes.base .. 'log:0:bytes', token) or 0)
  if bytes ~= kept then
    found('B3', '0', 'segment 0 of the log counts ' .. lanes.text(bytes) .. ' bytes, there are ' .. lanes.text(kept))
  end
end

local function main(lanes)
  local token, most = ARGV[1], tonumber(ARGV[2])
  local findings = {}
  local function found(predicate, place, what) findings[#findings + 1] = { predicate, place, what } end
  -- A subscription that ended is removed in parts, and its state is inconsistent until that is done.
  if redis.call('HEXISTS', lanes.base .. 'purge', token) == 1 then return findings end
  local jobs, batches, events = { held = held_jobs(lanes), listed = listed_jobs(lanes) }, 0, 0
  local counted = tonumber(redis.call('HGET', KEYS[3], token) or 0) <= most
  local needed = counted and tonumber(redis.call('HGET', KEYS[2], token) or 0) <= most and {} or nil
  for _, generation in ipairs(lanes.generations(token)) do
    local here = 0
    for number = 0, generation.lanes - 1 do
      local lane_batches, lane_events = check_lane(lanes, token, generation, number, jobs, counted, needed, found)
      here, events = here + lane_batches, events + lane_events
    end
    if here ~= generation.batches then
      found('B2', generation.name, 'generation ' .. generation.name .. ' counts ' .. lanes.text(generation.batches)
        .. ' batches and has ' .. lanes.text(here))
    end
    batches = batches + here
  end
  compare(lanes, KEYS[3], token, 'batches', batches, found)
  if counted then compare(lanes, KEYS[2], token, 'events', events, found) end
  if needed then compare_segments(lanes, token, needed, found) end
  return findings
end
