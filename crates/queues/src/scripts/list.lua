-- Shows a part of the messages that are delayed or in flight, those first whose delay or lease ends first.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: string, `delayed` or `inflight`
-- ARGV[2]: string, the tenant; empty for every one
-- ARGV[3]: integer, unix ms of the last entry that was read; empty for the first part
-- ARGV[4]: string, that entry
-- ARGV[5]: integer, maximum number of messages to show
-- ARGV[6]: integer, maximum bytes of bodies (the first message is shown whatever its size)
-- ARGV[7]: integer, maximum number of entries to read
-- Returns unix ms and text of the last entry that was read, both empty at the end; then for each message id, how often
-- it was delivered, tenant, unix ms when its delay or its lease ends, and body.
-- Caller: Store::list

-- The position after the last entry that was read. If that entry was removed or moved, the entries with the same time
-- are read again.
local function first_place(key, score, entry)
  if score == '' then return 0 end
  if redis.call('ZSCORE', key, entry) == score then return redis.call('ZRANK', key, entry) + 1 end
  return redis.call('ZCOUNT', key, '-inf', '(' .. score)
end

-- Item and tenant of each entry, false for one that was removed.
local function read_entries(queue, delayed, entries)
  local found, ids = {}, {}
  for i = 1, #entries, 2 do ids[#ids + 1] = entries[i] end
  local values = not delayed and #ids > 0 and lists.read('HMGET', queue.inflight, ids)
  for i = 1, #ids do
    local text = delayed and ids[i] or values[i] and string.match(values[i], '^%S+ %d+ (.*)$')
    local item, tenant = string.match(text or '', '^(%S+) (.*)$')
    found[i] = item and { item = item, tenant = tenant, score = entries[2 * i], entry = ids[i] }
  end
  return found
end

local function main(slices)
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { '', '' } end
  local delayed, only = ARGV[1] == 'delayed', ARGV[2]
  local most, left, read = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
  local key = delayed and queue.delayed or queue.leases
  local first = first_place(key, ARGV[3], ARGV[4])
  local entries = redis.call('ZRANGE', key, first, first + read - 1, 'WITHSCORES')
  local found = read_entries(queue, delayed, entries)
  local reply, shown, score, entry = { '', '' }, 0, ARGV[3], ARGV[4]
  for i = 1, #found do
    local one = found[i]
    if one and (only == '' or one.tenant == only) then
      if shown == most then
        reply[1], reply[2] = score, entry
        return reply
      end
      local id, segment, attempts = slices.item(one.item)
      local body = slices.body(queue, KEYS[4], id, segment) or ''
      left = left - #body
      if left < 0 and shown > 0 then
        reply[1], reply[2] = score, entry
        return reply
      end
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = id, slices.text(attempts), one.tenant
      reply[n + 4], reply[n + 5] = one.score, body
      shown = shown + 1
    end
    score, entry = entries[2 * i], entries[2 * i - 1]
  end
  if #found == read then reply[1], reply[2] = score, entry end
  return reply
end
