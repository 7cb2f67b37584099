-- Removes lanes of a subscription that ended, a limited part of them in each call.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, token -> the last generation whose lanes are to be removed
-- ARGV[1]: string, token
-- ARGV[2]: integer, maximum number of batches to remove, of 100 events each
-- Returns 1 when there is more to do, else 0.
-- Caller: Store::purge

local function main(lanes)
  local call = redis.call
  local token, left = ARGV[1], tonumber(ARGV[2])
  local upto = tonumber(call('HGET', KEYS[10], token))
  if not upto then return 0 end
  lanes.expect_own()

  local function clear(bid, generation)
    call('ZREM', KEYS[1], bid)
    local items = call('LRANGE', lanes.batch_key(bid), 3, -1)
    lanes.remove(bid, token, generation, #items)
    lanes.release(token, items)
    call('HINCRBY', KEYS[9], 'events.dropped', #items)
    -- A batch with many events counts as several.
    left = left - 1 - math.floor(#items / 100)
  end
  for _, generation in ipairs(lanes.generations(token)) do
    if tonumber(generation.name) <= upto then
      for number = 0, generation.lanes - 1 do
        local name = generation.name .. '.' .. number
        local job, ready = lanes.job(token, generation.name, number), lanes.ready_key(token, name)
        -- The job is removed first. A worker that still holds it, or takes it, will find its lane empty. The lists of jobs that
        -- can be taken are not searched for it: they have jobs of all subscribers.
        call('SREM', KEYS[4], job)
        call('ZREM', KEYS[5], job)
        call('SREM', lanes.waiting_key(token), job)
        while left > 0 do
          local bid = call('LPOP', ready)
          if not bid then break end
          clear(bid, generation.name)
        end
        if left <= 0 then return 1 end
        local bid = call('HGET', lanes.current_key(token), name)
        if bid then
          call('HDEL', lanes.current_key(token), name, name .. ':bytes')
          clear(bid, generation.name)
        end
        call('DEL', lanes.gaps_key(token, name))
      end
      call('HDEL', lanes.generations_key(token), generation.name, generation.name .. ':lanes')
    end
  end
  -- Jobs of a newer generation may have waited for these.
  for _, job in ipairs(call('SMEMBERS', lanes.waiting_key(token))) do lanes.instant(job) end
  call('DEL', lanes.waiting_key(token))
  lanes.next_in_line(token, true)
  call('HDEL', KEYS[10], token)
  return 0
end
