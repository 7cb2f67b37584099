-- Ends the pauses of a subscriber's lanes after failures, because its receiver may have recovered. A lane that waits for its
-- first batch to fill continues to wait.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token
-- Returns the number of lanes that paused.
-- Caller: Store::kick

local function main(lanes)
  local kicked = 0
  for _, generation in ipairs(lanes.generations(ARGV[1])) do
    for number = 0, generation.lanes - 1 do
      local job = lanes.job(ARGV[1], generation.name, number)
      local pauses = redis.call('EXISTS', lanes.ready_key(ARGV[1], generation.name .. '.' .. number)) == 1
      if pauses and redis.call('ZREM', KEYS[5], job) == 1 then
        lanes.instant(job)
        kicked = kicked + 1
      end
    end
  end
  return kicked
end
