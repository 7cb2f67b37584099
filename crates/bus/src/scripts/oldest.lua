-- Returns the creation time of a subscriber's oldest batch, and the size of some of its events.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- ARGV[1]: string, token
-- ARGV[2]: integer, maximum number of events to measure
-- Returns an array: unix ms, or an empty string when it has no batch; how many events were measured; the bytes of their bodies.
-- Caller: Store::oldest

local function main(lanes)
  local call = redis.call
  local oldest, first
  for _, generation in ipairs(lanes.generations(ARGV[1])) do
    for number = 0, generation.lanes - 1 do
      local name = generation.name .. '.' .. number
      local bid = call('LINDEX', lanes.ready_key(ARGV[1], name), 0)
        or call('HGET', lanes.current_key(ARGV[1]), name)
      local created = bid and tonumber(call('LINDEX', lanes.batch_key(bid), 1) or nil)
      if created and (not oldest or created < oldest) then oldest, first = created, bid end
    end
  end
  local most = tonumber(ARGV[2])
  local items = first and most > 0 and call('LRANGE', lanes.batch_key(first), 3, 2 + most) or {}
  local bytes = 0
  for i = 1, #items do
    local id, segment = lanes.item(items[i])
    bytes = bytes + lanes.body_size(id, segment)
  end
  return { oldest and lanes.text(oldest) or '', #items, bytes }
end
