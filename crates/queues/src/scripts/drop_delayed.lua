-- Drops delayed messages of a queue, part by part: those of one slice, or of all.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: string, the tenant; empty for every one
-- ARGV[2]: integer, cursor of the scan; 0 for the first part
-- ARGV[3]: integer, approximate number of messages to read
-- Returns how many were dropped, and the next cursor; 0 at the end.
-- Caller: Store::drop_delayed

local function main(slices)
  local call = redis.call
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, '0' } end
  local scanned = call('ZSCAN', queue.delayed, ARGV[2], 'COUNT', ARGV[3])
  local members = {}
  for i = 1, #scanned[2], 2 do
    local member = scanned[2][i]
    local item, tenant = string.match(member, '^(%S+) (.*)$')
    if ARGV[1] == '' or tenant == ARGV[1] then
      members[#members + 1] = { member = member, item = item, slice = slices.load(queue, tenant) }
    end
  end

  local dropped = 0
  for _, one in ipairs(members) do
    -- A scan may return a member twice.
    if call('ZREM', queue.delayed, one.member) == 1 then
      local id, segment = slices.item(one.item)
      slices.release(queue, id, segment, one.slice.tenant)
      one.slice.delayed = one.slice.delayed - 1
      dropped = dropped + 1
    end
  end
  if dropped > 0 then slices.settle_all(queue) end
  slices.add(queue, 'delayed', -dropped)
  slices.add(queue, 'dropped', dropped)
  slices.finish(queue)
  return { dropped, scanned[1] }
end
