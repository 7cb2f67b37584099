-- Searches one message in one place of a queue, part by part, and shows it, drops it, or ends its delay. The caller
-- searches the places in the order in which messages move.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, id of the message
-- ARGV[3]: string, `show`, `drop` (not a dead letter) or `advance` (shows a message that is not delayed)
-- ARGV[4]: string, the place: `delayed`, `waiting`, `inflight` or `dead`
-- ARGV[5]: string, the tenant; empty for every one, but not for `waiting`
-- ARGV[6]: integer, where this part begins; 0 for the first one
-- ARGV[7]: integer, approximate number of messages to read
-- Returns where the next part begins, 0 after the last one; and if the message was found, its tenant, how often it was
-- delivered, unix ms (when its delay or its lease ends, or when it died; 0 if it waits), the reason of a dead letter,
-- and its body.
-- Caller: Store::message

-- Dead letters that are read together, and their bytes after which a part ends.
local STEP, MAX_BYTES = 20, 524288

local search = {}

function search.delayed(slices, queue, id, from, most)
  -- A member is `item tenant`.
  local scanned = redis.call('ZSCAN', queue.delayed, from, 'MATCH', id .. '[ @#]*', 'COUNT', most)
  local member, due = scanned[2][1], scanned[2][2]
  if not member then return nil, scanned[1] end
  local item, tenant = string.match(member, '^(%S+) (.*)$')
  local _, segment, attempts = slices.item(item)
  return { id = id, item = item, tenant = tenant, segment = segment, attempts = attempts, at = due, member = member }, '0'
end

-- Reads from the tail: messages leave the list at its head, so none is skipped between two parts.
function search.waiting(slices, queue, id, from, most, only)
  local items = redis.call('LRANGE', queue.base .. ':' .. only, -from - most, -from - 1)
  for i = #items, 1, -1 do
    local found, segment, attempts = slices.item(items[i])
    if found == id then
      local behind = from + #items - i
      return {
        id = id, item = items[i], tenant = only, segment = segment, attempts = attempts, at = '0', behind = behind,
      }, '0'
    end
  end
  return nil, #items == most and slices.text(from + most) or '0'
end

function search.inflight(slices, queue, id)
  local found = slices.flying(id, redis.call('HGET', queue.inflight, id))
  if found then found.at = redis.call('ZSCORE', queue.leases, id) or '0' end
  return found, '0'
end

-- Dead letters contain their bodies, so a part also ends after some bytes.
function search.dead(slices, queue, id, from, most)
  local at, bytes = from, 0
  while at < from + most and bytes < MAX_BYTES do
    local stored = redis.call('LRANGE', queue.dead, at, at + STEP - 1)
    for i = 1, #stored do
      local letter = cmsgpack.unpack(stored[i])
      bytes = bytes + #stored[i]
      if letter[5] == id then
        return { tenant = letter[4], attempts = tonumber(letter[2]), at = letter[1], reason = letter[3], body = letter[6] }, '0'
      end
    end
    if #stored < STEP then return nil, '0' end
    at = at + STEP
  end
  return nil, slices.text(at)
end

local drop = {}

function drop.delayed(slices, queue, found)
  redis.call('ZREM', queue.delayed, found.member)
  slices.release(queue, found.id, found.segment, found.tenant)
  slices.load(queue, found.tenant).delayed = slices.load(queue, found.tenant).delayed - 1
  slices.add(queue, 'delayed', -1)
end

function drop.waiting(slices, queue, found)
  -- From the nearer end of the list.
  local is_near_head = slices.load(queue, found.tenant).waiting < 2 * found.behind
  redis.call('LREM', queue.base .. ':' .. found.tenant, is_near_head and 1 or -1, found.item)
  slices.hold(queue, found.segment, -1)
  slices.load(queue, found.tenant).waiting = slices.load(queue, found.tenant).waiting - 1
  slices.add(queue, 'waiting', -1)
end

function drop.inflight(slices, queue, found)
  slices.land(queue, { found })
  slices.hold(queue, found.segment, -1)
end

local function main(slices)
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { '0' } end
  local id, act, place, only = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local from, most = tonumber(ARGV[6]), tonumber(ARGV[7])
  local found, next_part = search[place](slices, queue, id, from, most, only)
  if not found or (only ~= '' and found.tenant ~= only) then return { next_part } end
  local body = found.body or slices.body(queue, KEYS[4], id, found.segment) or ''
  slices.expect('hash', queue.later)
  slices.expect('list', queue.dead)

  if act == 'drop' and drop[place] then
    slices.load(queue, found.tenant)
    drop[place](slices, queue, found)
    slices.add(queue, 'dropped', 1)
    slices.settle_all(queue)
  elseif act == 'advance' and place == 'delayed' then
    found.at = slices.text(slices.now(ARGV[1]))
    redis.call('ZADD', queue.delayed, 'XX', found.at, found.member)
    slices.schedule(queue, tonumber(found.at))
  end
  slices.finish(queue)
  return { next_part, found.tenant, slices.text(found.attempts), found.at, found.reason or '', body }
end
