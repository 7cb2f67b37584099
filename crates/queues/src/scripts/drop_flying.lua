-- Drops messages of one slice that are in flight, part by part. Their receipts become invalid.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: string, the tenant
-- ARGV[2]: integer, cursor of the scan; 0 for the first part
-- ARGV[3]: integer, approximate number of messages to read
-- Returns how many were dropped, and the next cursor; 0 at the end.
-- Caller: Store::drop_flying

local function main(slices)
  local call = redis.call
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, '0' } end
  local slice = slices.load(queue, ARGV[1])
  local scanned = call('HSCAN', queue.inflight, ARGV[2], 'COUNT', ARGV[3])
  local landed, seen = {}, {}
  for i = 1, #scanned[2], 2 do
    local message = slices.flying(scanned[2][i], scanned[2][i + 1])
    -- A scan may return a field twice.
    if message and message.tenant == slice.tenant and not seen[message.id] then
      landed[#landed + 1] = message
      seen[message.id] = true
    end
  end

  slices.land(queue, landed)
  for _, message in ipairs(landed) do slices.hold(queue, message.segment, -1) end
  slices.add(queue, 'dropped', #landed)
  if #landed > 0 then slices.settle_all(queue) end
  slices.finish(queue)
  return { #landed, scanned[1] }
end
