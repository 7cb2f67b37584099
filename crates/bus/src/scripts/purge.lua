-- Removes lanes of a subscription that ended, a limited part of them in each call.
-- KEYS[1-9]: the keys of the lanes, see lanes.lua
-- KEYS[10]: hash, token -> the last generation whose lanes are to be removed
-- ARGV[1]: string, token
-- ARGV[2]: integer, maximum number of events to remove; a batch and an empty lane count as 10 more
-- Returns 1 when there is more to do, else 0.
-- Caller: Store::purge

local function main(lanes)
  local call = redis.call
  local token, left = ARGV[1], tonumber(ARGV[2])
  local upto = tonumber(call('HGET', KEYS[10], token))
  if not upto then return 0 end
  lanes.expect_own()
  lanes.expect('hash', lanes.current_key(token), lanes.generations_key(token))
  lanes.expect('set', lanes.waiting_key(token))
  lanes.expect('list', lanes.behind_key(token))

  -- Removes a batch, or its oldest events. Returns whether nothing of it is left.
  local function clear(bid, generation)
    local items, head, more = lanes.oldest_of(bid, left)
    if more then
      lanes.cut(bid, items, head)
      lanes.count(token, generation, -#items, 0)
    else
      lanes.remove(bid, token, generation, #items)
    end
    lanes.release(token, items)
    call('HINCRBY', KEYS[9], 'events.dropped', #items)
    left = left - 10 - #items
    return not more
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
          local bid = call('LINDEX', ready, 0)
          if not bid then break end
          if clear(bid, generation.name) then call('LPOP', ready) end
        end
        if left <= 0 then return 1 end
        local bid = call('HGET', lanes.current_key(token), name)
        if bid and not clear(bid, generation.name) then return 1 end
        if bid then call('HDEL', lanes.current_key(token), name, name .. ':bytes') end
        call('DEL', lanes.gaps_key(token, name))
      end
      call('HDEL', lanes.generations_key(token), generation.name, generation.name .. ':lanes')
      left = left - 10 * generation.lanes
      if left <= 0 then return 1 end
    end
  end
  -- Jobs of a newer generation may have waited for these.
  for _, job in ipairs(call('SMEMBERS', lanes.waiting_key(token))) do lanes.instant(job) end
  call('DEL', lanes.waiting_key(token))
  lanes.next_in_line(token, true)
  call('HDEL', KEYS[10], token)
  return 0
end
