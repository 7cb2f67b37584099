-- Shows waiting messages without handing them out: those at the head of one slice, or the next one of each slice in the
-- order of their turns.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: string, the tenant; empty for every one
-- ARGV[2]: integer, maximum number of messages
-- ARGV[3]: integer, maximum bytes of bodies (the first message of all is shown whatever its size)
-- ARGV[4]: integer, how many messages, or slices, earlier parts have read
-- Returns how many were read, fewer than the maximum if there are no more or the bytes are used up; then for each message id, how
-- often it was delivered, tenant, how many wait in its slice, and body.
-- Caller: Store::peek

local function main(slices)
  local call = redis.call
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0 } end
  local most, left, from = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  local shown, read = {}, 0
  if ARGV[1] ~= '' then
    for _, item in ipairs(call('LRANGE', queue.base .. ':' .. ARGV[1], from, from + most - 1)) do
      shown[#shown + 1] = { item = item, tenant = ARGV[1] }
    end
  else
    for _, tenant in ipairs(call('ZRANGE', queue.ring, from, from + most - 1)) do
      local item = call('LINDEX', queue.base .. ':' .. tenant, 0)
      if item then shown[#shown + 1] = { item = item, tenant = tenant } end
    end
  end
  local reply = { 0 }
  for _, one in ipairs(shown) do
    local id, segment, attempts = slices.item(one.item)
    local body = call('HGET', KEYS[4] .. ':' .. segment, id)
    if body then
      left = left - #body
      if left < 0 and (#reply > 1 or from > 0) then break end
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = id, slices.text(attempts), one.tenant
      reply[n + 4], reply[n + 5] = slices.text(slices.load(queue, one.tenant).waiting), body
    end
    read = read + 1
  end
  reply[1] = read
  return reply
end
