-- Takes the job away from a crashed worker, so that another worker can take it. Nothing happens if the worker has sent
-- a heartbeat since the caller read its last one.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, worker
-- ARGV[2]: string, its last heartbeat as the caller saw it, unix ms; empty for none
-- Returns how many jobs were taken from it, or -1 when it is alive.
-- Caller: Store::scrub

local function main(lanes)
  local call = redis.call
  local worker, pending = ARGV[1], lanes.pending_key(ARGV[1])
  if (call('HGET', KEYS[8], worker) or '') ~= ARGV[2] then return -1 end
  -- With the job, the list has a count; see lanes.kicks.
  local jobs = call('LRANGE', pending, 0, 0)
  lanes.expect_own()
  for _, job in ipairs(jobs) do
    local readable, what = pcall(cmsgpack.unpack, job)
    if readable then lanes.expect('list', lanes.behind_key(what[2][1])) end
  end

  call('DEL', pending)
  call('SREM', KEYS[7], worker)
  call('HDEL', KEYS[8], worker)
  local freed = 0
  for _, job in ipairs(jobs) do
    local readable, what = pcall(cmsgpack.unpack, job)
    if readable then lanes.next_in_line(what[2][1]) end
    -- A job of a subscription that has ended is not in the index.
    if call('SISMEMBER', KEYS[4], job) == 1 then
      -- A delivery was in progress. It is counted as an attempt; otherwise a batch that crashes its worker would be
      -- tried without end.
      local token, generation, number = what[2][1], lanes.text(what[2][2]), lanes.text(what[2][3])
      local bid = call('LINDEX', lanes.ready_key(token, generation .. '.' .. number), 0)
      local attempts = bid and call('LINDEX', lanes.batch_key(bid), 2)
      if attempts then call('LSET', lanes.batch_key(bid), 2, lanes.text(tonumber(attempts) + 1)) end
      lanes.instant(job)
      freed = freed + 1
    end
  end
  if freed > 0 then call('HINCRBY', KEYS[9], 'jobs.scrubbed', freed) end
  return freed
end
