-- Looks at one subscriber's lanes for what must never be, without changing anything.
-- KEYS[1]: zset, index of batches
-- KEYS[2]: hash, events by token
-- KEYS[3]: hash, batches by token
-- KEYS[4]: set, all jobs
-- KEYS[5]: zset, scheduled jobs
-- KEYS[6]: list, instant jobs
-- KEYS[7]: set, workers that hold a job
-- KEYS[8]: hash, heartbeats of workers
-- KEYS[9]: hash, counters
-- ARGV[1]: string, the token
-- ARGV[2]: integer, batches whose events are counted at most
-- Returns an array of findings, each a predicate, a lane or gauge, and what is wrong: B1, a lane with a batch has exactly
-- one job, and one without has none; B2, gauges equal the sums over the batches.
-- Caller: Store::audit

local function main(lanes)
  local call = redis.call
  local token, most = ARGV[1], tonumber(ARGV[2])
  local findings = {}
  -- What ended is cleared away part by part; until then it is between two states.
  if call('HEXISTS', lanes.base .. 'purge', token) == 1 then return findings end
  local held = {}
  for _, worker in ipairs(call('SMEMBERS', KEYS[7])) do
    local job = call('LINDEX', lanes.pending_key(worker), 0)
    if job then held[job] = (held[job] or 0) + 1 end
  end
  local batches, events = 0, 0
  local counted = tonumber(call('HGET', KEYS[3], token) or 0) <= most
  for _, generation in ipairs(lanes.generations(token)) do
    local here = 0
    for number = 0, generation.lanes - 1 do
      local name = generation.name .. '.' .. number
      local ready = call('LLEN', lanes.ready_key(token, name))
      local current = call('HGET', lanes.current_key(token), name)
      local job = lanes.job(token, generation.name, number)
      local places = (held[job] or 0) + #call('LPOS', KEYS[6], job, 'COUNT', 2)
        + call('SISMEMBER', lanes.waiting_key(token), job)
      if call('ZSCORE', KEYS[5], job) then places = places + 1 end
      local wanted = (ready > 0 or current) and 1 or 0
      if places ~= wanted or call('SISMEMBER', KEYS[4], job) ~= wanted then
        findings[#findings + 1] = { 'B1', name, 'lane ' .. name .. ' has ' .. lanes.text(ready + (current and 1 or 0))
          .. ' batches, and its job stands in ' .. lanes.text(places) .. ' places' }
      end
      here = here + ready + (current and 1 or 0)
      if counted then
        for _, bid in ipairs(call('LRANGE', lanes.ready_key(token, name), 0, -1)) do
          events = events + call('LLEN', lanes.batch_key(bid)) - 3
        end
        if current then events = events + call('LLEN', lanes.batch_key(current)) - 3 end
      end
    end
    if here ~= generation.batches then
      findings[#findings + 1] = { 'B2', generation.name, 'generation ' .. generation.name .. ' counts '
        .. lanes.text(generation.batches) .. ' batches and has ' .. lanes.text(here) }
    end
    batches = batches + here
  end
  local function compare(key, what, sum)
    local gauge = tonumber(call('HGET', key, token) or 0)
    if gauge ~= sum then
      findings[#findings + 1] = { 'B2', what, 'the gauge counts ' .. lanes.text(gauge) .. ' ' .. what .. ', there are '
        .. lanes.text(sum) }
    end
  end
  compare(KEYS[3], 'batches', batches)
  if counted then compare(KEYS[2], 'events', events) end
  return findings
end
