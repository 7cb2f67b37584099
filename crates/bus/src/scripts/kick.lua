-- Ends the pauses of a subscriber's lanes, because its receiver may have recovered, or its subscription has changed. A lane
-- that is in flight does not pause after this attempt. A lane that waits for its first batch to fill waits no longer than
-- the subscription says now. A change of the subscription is noted in KEYS[11], in the script that stores the change. So
-- this script is called even if the process that made the change dies before it can.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, counters of the subscription
-- KEYS[11]: hash, token of a changed subscription -> ms that its batches wait to fill
-- ARGV[1]: string, token
-- ARGV[2]: integer, ms that a batch of this subscriber waits to fill, unless KEYS[11] has it; empty if nothing is to be done
-- without a note in KEYS[11]
-- Returns the number of lanes that paused.
-- Caller: Store::kick

-- Brings the due time of a lane that fills its first batch forward.
local function hasten(lanes, token, name, job, timeout)
  local bid, due = redis.call('HGET', lanes.current_key(token), name), redis.call('ZSCORE', KEYS[5], job)
  if not bid or not due then return end
  local wanted = tonumber(redis.call('LINDEX', lanes.batch_key(bid), 1) or 0) + timeout
  if wanted < tonumber(due) then lanes.schedule(job, wanted) end
end

local function main(lanes)
  local token = ARGV[1]
  local timeout = tonumber(redis.call('HGET', KEYS[11], token) or ARGV[2])
  if not timeout then return 0 end
  lanes.expect_own()
  lanes.expect('hash', KEYS[10], lanes.current_key(token), lanes.generations_key(token))
  lanes.expect('list', lanes.behind_key(token))
  -- Redis accepts this write at its memory limit, and then those after it.
  redis.call('HDEL', KEYS[11], token)
  redis.call('HINCRBY', KEYS[10], 'kicks', 1)
  local kicked = redis.call('LLEN', lanes.behind_key(token))
  lanes.next_in_line(token, true)
  for _, generation in ipairs(lanes.generations(token)) do
    for number = 0, generation.lanes - 1 do
      local name = generation.name .. '.' .. number
      local job = lanes.job(token, generation.name, number)
      if redis.call('EXISTS', lanes.ready_key(token, name)) == 0 then
        hasten(lanes, token, name, job, timeout)
      elseif redis.call('ZREM', KEYS[5], job) == 1 then
        lanes.instant(job)
        kicked = kicked + 1
      end
    end
  end
  return kicked
end
