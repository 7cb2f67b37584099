-- Gives jobs to idle workers: makes scheduled jobs that are due instant, and for each worker takes one, with the
-- batch at the head of its lane. A worker that holds a job already (the reply of an earlier call was lost) gets that.
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
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, how many due jobs to make instant at most
-- ARGV[3...]: strings, idle workers
-- Returns {now, due of the earliest scheduled job or empty, instant jobs left, the registry's stamp or empty, one
-- {worker, job, token, generation, lane, batch, health, {items of the batch}, {gaps of the lane}} for each job}.
-- Caller: Store::acquire

local function main(lanes)
  local call = redis.call
  local now = lanes.now(ARGV[1])

  local due = call('ZRANGE', KEYS[5], '-inf', lanes.text(now), 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[2]))
  for from = 1, #due, 1000 do
    local part = { unpack(due, from, math.min(from + 999, #due)) }
    call('ZREM', KEYS[5], unpack(part))
    call('RPUSH', KEYS[6], unpack(part))
  end

  -- What the worker can do with a job. Nothing: the lane is empty, or waits for an older generation.
  local function look(worker, job, held)
    local readable, what = pcall(cmsgpack.unpack, job)
    if not readable or type(what) ~= 'table' or what[1] ~= 'lane' or type(what[2]) ~= 'table' then
      -- Not ours to understand: forgotten and counted, so it stops nobody.
      call('SREM', KEYS[4], job)
      call('HINCRBY', KEYS[9], 'jobs.unreadable', 1)
      return nil
    end
    local token, generation, number = what[2][1], lanes.text(what[2][2]), lanes.text(what[2][3])
    local name = generation .. '.' .. number
    local ready = lanes.ready_key(token, name)
    local bid = call('LINDEX', ready, 0)
    local promote = not bid
    if promote then
      bid = call('HGET', lanes.current_key(token), name)
      if not bid then
        call('SREM', KEYS[4], job)
        return nil
      end
    end
    if not held and lanes.must_wait(token, generation) then
      call('SADD', lanes.waiting_key(token), job)
      return nil
    end
    if promote then
      call('HDEL', lanes.current_key(token), name, name .. ':bytes')
      call('RPUSH', ready, bid)
    end
    local health = call('HGET', lanes.base .. 'subscriber:' .. token, 'health_points') or '100'
    return { worker, job, token, generation, number, bid, health, call('LRANGE', lanes.batch_key(bid), 0, -1),
      call('LRANGE', lanes.gaps_key(token, name), 0, -1) }
  end

  local taken = {}
  for w = 3, #ARGV do
    local worker = ARGV[w]
    local pending = lanes.pending_key(worker)
    local entry
    local own = call('LINDEX', pending, 0)
    if own then
      entry = look(worker, own, true)
      if not entry then lanes.let_go(worker) end
    end
    -- A job that leads to nothing costs its worker another look, up to a bound; the caller asks again.
    local looks = 0
    while not entry and looks < 100 do
      local job = call('LPOP', KEYS[6])
      if not job then break end
      entry = look(worker, job, false)
      looks = looks + 1
      if entry then
        call('RPUSH', pending, job)
        call('SADD', KEYS[7], worker)
        call('HSET', KEYS[8], worker, lanes.text(now))
      end
    end
    if entry then taken[#taken + 1] = entry end
  end

  local first = call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
  lanes.finish()
  return { lanes.text(now), first[2] or '', call('LLEN', KEYS[6]), call('HGET', KEYS[10], 'stamp') or '', unpack(taken) }
end
