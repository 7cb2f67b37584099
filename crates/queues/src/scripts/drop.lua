-- Drops waiting messages of a queue, part by part: of one facet or of all facets; all of them, or those that are too
-- old.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: string, the environment; empty for every one
-- ARGV[2]: string, the environment after which this part begins; empty for the first part
-- ARGV[3]: integer, unix ms before which a message is too old; empty when age does not matter
-- ARGV[4]: integer, maximum number of messages, and of facets to read
-- Returns how many were dropped, and the environment after which the next part begins; empty when there is none.
-- Caller: Store::drop_waiting

local function main(facets)
  local call = redis.call
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, '' } end
  local only, before, most = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
  local first = ARGV[2] == '' and '-' or '(' .. ARGV[2]
  local envs = only ~= '' and { only } or call('ZRANGE', queue.index, first, '+', 'BYLEX', 'LIMIT', 0, most)
  local plans, left, last = {}, most, ARGV[2]
  local more = only == '' and #envs == most
  for _, env in ipairs(envs) do
    local facet = facets.load(queue, env)
    local items = call('LRANGE', facet.list, 0, left - 1)
    local n = 0
    while n < #items and (not before or facets.since(items[n + 1]) < before) do n = n + 1 end
    if n > 0 then plans[#plans + 1] = { facet = facet, items = items, n = n } end
    left = left - n
    if left == 0 and facet.waiting > n then
      -- The next part begins with this facet again.
      more = true
      break
    end
    last = env
    if left == 0 then
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
  facets.add(queue, 'waiting', left - most)
  facets.add(queue, 'dropped', most - left)
  facets.finish(queue)
  if only ~= '' then return { most - left, more and only or '' } end
  -- If the first facet is not finished, the position is a text that sorts before every environment, as none contains
  -- control characters.
  return { most - left, more and (last == '' and '\001' or last) or '' }
end
