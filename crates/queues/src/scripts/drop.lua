-- Drops waiting messages of a queue, part by part: of one slice or of all slices; all of them, or those that are too
-- old.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the tenant; empty for every one
-- ARGV[3]: string, the tenant after which this part begins; empty for the first part
-- ARGV[4]: integer, 1 to drop only messages that have waited for longer than the queue's retention, as the shard has it
-- ARGV[5]: integer, maximum number of messages; a slice whose messages are dropped counts as 20 more, and another one as 2
-- Returns how many were dropped, and the tenant after which the next part begins; empty when there is none.
-- Caller: Store::drop_waiting, Store::drop_expired

-- What a slice counts in messages, which is about what it costs.
local DROPPED_SLICE, READ_SLICE = 20, 2

-- The oldest items of a list, at most `most`; only those that became available before `before`, if it is given. They are read
-- in steps, because most slices have none that is too old.
local function oldest(slices, list, before, most)
  if not before then return redis.call('LRANGE', list, 0, most - 1) end
  local items, step = {}, 1
  while #items < most do
    local from = #items
    local part = redis.call('LRANGE', list, from, math.min(from + step, most) - 1)
    for i = 1, #part do
      if not slices.available_before(part[i], before) then return items end
      items[from + i] = part[i]
    end
    if #part < step then return items end
    step = step * 8
  end
  return items
end

local function main(slices)
  local call = redis.call
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, '' } end
  local only, most, before = ARGV[2], tonumber(ARGV[5]), nil
  if ARGV[4] == '1' then
    if not queue.retention then return { 0, '' } end
    before = slices.now(ARGV[1]) - queue.retention
  end
  local first = ARGV[3] == '' and '-' or '(' .. ARGV[3]
  local tenants = only ~= '' and { only } 
    or call('ZRANGE', queue.index, first, '+', 'BYLEX', 'LIMIT', 0, math.ceil(most / READ_SLICE))
  local plans, left, last, dropped = {}, most, ARGV[3], 0
  local more = only == '' and #tenants == math.ceil(most / READ_SLICE)
  for _, tenant in ipairs(tenants) do
    local items = oldest(slices, queue.base .. ':' .. tenant, before, left)
    local n = #items
    left = left - (n > 0 and DROPPED_SLICE or READ_SLICE) - n
    if n > 0 then
      local slice = slices.load(queue, tenant)
      plans[#plans + 1] = { slice = slice, items = items, n = n }
      dropped = dropped + n
      if left <= 0 and slice.waiting > n then
        -- The next part begins with this slice again.
        more = true
        break
      end
    end
    last = tenant
    if left <= 0 then
      more = only == ''
      break
    end
  end

  -- LPOP frees memory, so Redis accepts it at its memory limit, and then everything after it.
  for _, plan in ipairs(plans) do
    call('LPOP', plan.slice.list, plan.n)
    plan.slice.waiting = plan.slice.waiting - plan.n
    for i = 1, plan.n do
      local _, segment = slices.item(plan.items[i])
      slices.hold(queue, segment, -1)
    end
  end
  for _, plan in ipairs(plans) do slices.settle(queue, plan.slice) end
  slices.add(queue, 'waiting', -dropped)
  slices.add(queue, 'dropped', dropped)
  slices.finish(queue)
  if only ~= '' then return { dropped, more and only or '' } end
  -- If the first slice is not finished, the position is a text that sorts before every tenant, as none contains
  -- control characters.
  return { dropped, more and (last == '' and '\001' or last) or '' }
end
