-- Returns the creation time of a subscriber's oldest batch.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token
-- Returns unix ms, or an empty string when it has no batch.
-- Caller: Store::oldest

local function main(lanes)
  local call = redis.call
  local oldest
  for _, generation in ipairs(lanes.generations(ARGV[1])) do
    for number = 0, generation.lanes - 1 do
      local name = generation.name .. '.' .. number
      local bid = call('LINDEX', lanes.ready_key(ARGV[1], name), 0)
        or call('HGET', lanes.current_key(ARGV[1]), name)
      local created = bid and tonumber(call('LINDEX', lanes.batch_key(bid), 1) or nil)
      if created and (not oldest or created < oldest) then oldest = created end
    end
  end
  return oldest and lanes.text(oldest) or ''
end
