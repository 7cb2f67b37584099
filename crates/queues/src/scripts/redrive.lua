-- Takes dead letters out of their list, the oldest first, part by part: all, those of one tenant, or single ones.
-- They return to their slices, as if they had never been delivered, or are dropped. Their bodies are stored again, because
-- those in the log may be gone.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- KEYS[5]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp that the weights below were taken from
-- ARGV[3]: integer, maximum number of dead letters to read
-- ARGV[4]: integer, 1 to drop them, 0 to return them
-- ARGV[5]: integer, place of the first one to read
-- ARGV[6]: string, id of the one before it; empty for none. If another one is there, letters were removed in the meantime
-- ARGV[7]: string, the tenant; empty for every one
-- ARGV[8]: integer, messages to return per 1,000 seconds; 0 for all now
-- ARGV[9]: integer, how many were returned by earlier parts of the same request
-- ARGV[10]: integer, number of ids; 0 for every one
-- ARGV[11...]: strings, the ids; then tenants, their weights and their rules; others have 1 and no rules
-- Returns an array: how many were taken (-1 when the registry has another stamp), the place of the next part, or -1
-- after the last one, and the id of the letter before that place, empty for none.
-- Caller: Store::take_dead

-- Dead letters that are read together, and their bytes after which a part ends.
local STEP, MAX_BYTES = 16, 1048576
-- Dead letters before a part among which the last one of the part before is searched.
local SEARCHED = 50
-- Places of the list that a call may pass over to remove single letters; one letter is always removed.
local MAX_PASSED = 50000

-- Where a part begins, and the id of the letter before it. If many letters were removed since the part before, it begins with
-- the first one: those that were passed over are passed over again.
local function begin(queue, from, behind)
  local count = 1
  while from > 0 and count <= SEARCHED do
    local stored = redis.call('LRANGE', queue.dead, math.max(from - count, 0), from - 1)
    for i = #stored, 1, -1 do
      if cmsgpack.unpack(stored[i])[5] == behind then return math.max(from - count, 0) + i, behind end
    end
    count = count == 1 and SEARCHED or SEARCHED + 1
  end
  return 0, ''
end

-- Reads the dead letters of this part. Returns those that are taken with their stored form, how many were read, whether these
-- were the last, and the id of the last one that stays (`behind` if none does).
local function read_letters(slices, queue, from, most, only, ids, behind)
  local letters, read, bytes, passed = {}, 0, 0, 0
  local is_all = only == '' and not ids
  while read < most and bytes < MAX_BYTES do
    local count = math.min(STEP, most - read)
    local stored = redis.call('LRANGE', queue.dead, from + read, from + read + count - 1)
    for i = 1, #stored do
      local letter = cmsgpack.unpack(stored[i])
      local tenant, id = letter[4], letter[5]
      if is_all or (only == '' or tenant == only) and (not ids or ids[id]) then
        passed = passed + (is_all and 0 or from + read - #letters)
        if passed > MAX_PASSED and #letters > 0 then return letters, read, false, behind end
        letters[#letters + 1] = { stored = stored[i], tenant = tenant, id = id, body = letter[6] }
        slices.load(queue, tenant)
      else
        behind = id
      end
      read, bytes = read + 1, bytes + #stored[i]
    end
    if #stored < count then return letters, read, true, behind end
  end
  return letters, read, false, behind
end

-- Removes letters from the list. This frees memory, so Redis accepts it at its memory limit, and then everything after
-- it.
local function remove(queue, letters, from, count)
  if from == 0 and #letters == count then
    if count > 0 then redis.call('LPOP', queue.dead, count) end
    return
  end
  for i = 1, #letters do redis.call('LREM', queue.dead, 1, letters[i].stored) end
end

local function main(slices)
  local call = redis.call
  if call('HGET', KEYS[5], 'stamp') ~= ARGV[2] then return { -1, -1, '' } end
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return { 0, -1, '' } end
  local now, most = slices.now(ARGV[1]), tonumber(ARGV[3])
  local from, behind = begin(queue, tonumber(ARGV[5]), ARGV[6])
  local rate, before, count = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
  local ids = count > 0 and {}
  for at = 11, 10 + count do ids[ARGV[at]] = true end
  local weights, rules = {}, {}
  for at = 11 + count, #ARGV, 3 do weights[ARGV[at]], rules[ARGV[at]] = tonumber(ARGV[at + 1]), ARGV[at + 2] end
  local segment = slices.segment(now)
  local log = KEYS[4] .. ':' .. segment
  slices.expect('hash', KEYS[4], log, queue.later)
  slices.expect('zset', queue.throttled, queue.delayed)
  local letters, seen, is_last, last = read_letters(slices, queue, from, most, ARGV[7], ids, behind)

  remove(queue, letters, from, seen)
  for i = 1, #letters do
    local letter = letters[i]
    local weight, rule = weights[letter.tenant] or 1, rules[letter.tenant] or ''
    local slice = queue.slices[letter.tenant]
    local due = rate > 0 and math.floor(now + (before + i - 1) * 1000000 / rate) or now
    if ARGV[4] == '1' then
      slices.settle(queue, slice)
    elseif due > now then
      slices.charge(queue, letter.tenant, #letter.body)
      slices.push_later(queue, slice, letter.id, letter.body, due, weight, rule)
    else
      -- The segment may have the message already, for this or another queue.
      if call('HSET', log, letter.id, letter.body) == 1 then
        call('HINCRBY', KEYS[4], segment, #letter.body)
        slices.charge(queue, letter.tenant, #letter.body, segment)
      end
      slices.hold(queue, segment, 1)
      slices.push(queue, slice, { letter.id .. '@' .. segment }, weight, rule)
    end
  end
  slices.add(queue, ARGV[4] == '1' and 'dropped' or 'redriven', #letters)
  slices.finish(queue)
  return { #letters, is_last and -1 or from + seen - #letters, last }
end
