-- Drops waiting messages of a queue, part by part: of one facet or of all facets; all of them, or those that are too
-- old.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the environment; empty for every one
-- ARGV[3]: string, the environment after which this part begins; empty for the first part
-- ARGV[4]: integer, 1 to drop only messages that have waited for longer than the queue's retention, as the shard has it
-- ARGV[5]: integer, maximum number of messages; a facet whose messages are dropped counts as 20 more, and another one as 2
-- Returns how many were dropped, and the environment after which the next part begins; empty when there is none.
-- Caller: Store::drop_waiting, Store::drop_expired

-- What a facet counts in messages, which is about what it costs.
local DROPPED_FACET, READ_FACET = 20, 2

-- The oldest items of a list, at most `most`; only those that became available before `before`, if it is given. They are read
-- in steps, because most facets have none that is too old.
local function oldest(facets, list, before, most)
  if not before then return redis.call('LRANGE', list, 0, most - 1) end
  local items, step = {}, 1
  while #items < most do
    local from = #items
    local part = redis.call('LRANGE', list, from, math.min(from + step, most) - 1)
    for i = 1, #part do
      if not facets.available_before(part[i], before) then return items end
      items[from + i] = part[i]
    end
    if #part < step then return items end
    step = step * 8
  end
  return items
end

local function main(facets)
  local call = redis.call
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, '' } end
  local only, most, before = ARGV[2], tonumber(ARGV[5]), nil
  if ARGV[4] == '1' then
    if not queue.retention then return { 0, '' } end
    before = facets.now(ARGV[1]) - queue.retention
  end
  local first = ARGV[3] == '' and '-' or '(' .. ARGV[3]
  local envs = only ~= '' and { only } 
    or call('ZRANGE', queue.index, first, '+', 'BYLEX', 'LIMIT', 0, math.ceil(most / READ_FACET))
  local plans, left, last, dropped = {}, most, ARGV[3], 0
  local more = only == '' and #envs == math.ceil(most / READ_FACET)
  for _, env in ipairs(envs) do
    local items = oldest(facets, queue.base .. ':' .. env, before, left)
    local n = #items
    left = left - (n > 0 and DROPPED_FACET or READ_FACET) - n
    if n > 0 then
      local facet = facets.load(queue, env)
      plans[#plans + 1] = { facet = facet, items = items, n = n }
      dropped = dropped + n
      if left <= 0 and facet.waiting > n then
        -- The next part begins with this facet again.
        more = true
        break
      end
    end
    last = env
    if left <= 0 then
      more = only == ''
      break
    end
  end

  -- LPOP frees memory, so Redis accepts it at its memory limit, and then everything after it.
  for _, plan in ipairs(plans) do
    call('LPOP', plan.facet.list, plan.n)
    plan.facet.waiting = plan.facet.waiting - plan.n
    for i = 1, plan.n do
      local _, segment = facets.item(plan.items[i])
      facets.hold(queue, segment, -1)
    end
  end
  for _, plan in ipairs(plans) do facets.settle(queue, plan.facet) end
  facets.add(queue, 'waiting', -dropped)
  facets.add(queue, 'dropped', dropped)
  facets.finish(queue)
  if only ~= '' then return { dropped, more and only or '' } end
  -- If the first facet is not finished, the position is a text that sorts before every environment, as none contains
  -- control characters.
  return { dropped, more and (last == '' and '\001' or last) or '' }
end
