-- The part of the publish script that changes a label in the step that publishes its events. It is appended to that
-- script at compile time (`open_labels`), with `lanes` and `settle` in scope.
--
-- A label's record is `object:machine:<machine>:<label>:data`, a packed string. Only its header is read here: it has to
-- equal `expected`, so that a change computed from an older record is rejected and nothing happens. The ID of the
-- change's first event is written after the part that ends with the header (`head`), because only the script knows it.
--
-- The words of a change: machine (empty when the group has no change; then there are no others), the header that the
-- record must have (empty: the record must not exist), the version of the definition that must be current (empty: any),
-- the record before the ID, the record after it, ms after which it expires (empty: no expiry), the ID of the label's last
-- event (empty: none), the bytes of the record that it replaces (0 if that is not counted, because it expires, or there is
-- none), the number of index entries, and for each of these the key after `machine:`, the member, and its score
-- (empty: it is removed); then the number of lines for the label's log (`object:machine:<machine>:<label>:log`), and, unless it is 0, how many lines the log
-- keeps, ms after which it expires, and the lines.
--
-- Most of a call's changes concern the same few indexes, and a command costs more than its members. So records and
-- index entries are collected, and written together at the end. A change is only the position of its words.

local labels = {}
local machines = string.match(lanes.objects, '^(.*)object:$') .. 'machine:'
local owners = lanes.base .. 'environments'
local recounts = machines .. 'recounts'
-- Length of a header in bytes: format, incarnation, visit, revision.
local HEADER = 21
-- Maximum number of members or records that are collected before they are written.
local MAX_TOGETHER = 1000
-- Bytes that the indexes need for a label, about.
local INDEX_BYTES = 256
-- A change that adds more bytes to a record stores data of a client. A smaller one is a move of the label.
local MAX_MOVE_BYTES = 1024

local pending, versions = {}, {}
-- By how many bytes the labels of each machine have grown, and its recount (false if none is under way; see recount.lua).
local grown, counts = {}, {}
local indexes, index_list, records = {}, {}, {}

-- The index with this key after `machine:`, what is to be added to it and removed from it, and the last score that this
-- call gives to each member (empty: removed). Only reads.
local function open_index(name)
  local index = indexes[name]
  if not index then
    index = { key = machines .. name, adds = {}, removes = {}, scores = {} }
    lanes.expect('zset', index.key)
    index.is_due_set = string.find(name, '^[^:]*:due$')
    if index.is_due_set then lanes.expect('zset', machines .. 'next') end
    indexes[name], index_list[#index_list + 1] = index, index
  end
  return index
end

-- Reads the words of a change. Returns it, and the position of the next word.
function labels.read(at, object)
  local words = ARGV
  if words[at] == '' then return nil, at + 1 end
  local log, prev = at + 9 + 3 * words[at + 8], words[at + 6]
  local lines = tonumber(words[log])
  local change = {
    key = lanes.objects .. object, object = object, at = at, log = log, lines = lines, prev = prev ~= '' and prev,
  }
  return change, lines == 0 and log + 1 or log + 3 + lines
end

-- By how many bytes the label grows, and how many it has afterwards. A record that expires is not counted, because its end
-- cannot be noticed.
local function growth(change)
  local words, at, before, after = ARGV, change.at, tonumber(ARGV[change.at + 7]), 0
  if before > 0 then before = before + INDEX_BYTES end
  if words[at + 5] == '' then after = #words[at + 3] + 8 + #words[at + 4] + INDEX_BYTES end
  return after - before, after
end

-- The owner of a change that stores more data, in the counts of bytes (publish_quota.lua); nil for other changes.
function labels.grows(change)
  local more, after = growth(change)
  local is_new = after > 0 and more == after
  if is_new or more > MAX_MOVE_BYTES then return 'machine:' .. ARGV[change.at] end
end

-- Whether a text is before or equal to another one, byte by byte, as Redis orders names. Lua's own order depends on the locale.
local function is_up_to(text, last)
  local length, from = math.min(#text, #last), 1
  -- Names often begin with the same bytes.
  while from + 15 <= length and string.sub(text, from, from + 15) == string.sub(last, from, from + 15) do
    from = from + 16
  end
  for i = from, length do
    local a, b = string.byte(text, i), string.byte(last, i)
    if a ~= b then return a < b end
  end
  return #text <= #last
end

-- Adds to the growth of a machine. A recount that is under way has counted the labels up to a name, so it has to follow
-- their changes. Only reads.
local function grow(machine, change)
  local more, count = growth(change), counts[machine]
  grown[machine] = (grown[machine] or 0) + more
  if count == nil then
    local bytes, last = string.match(redis.call('HGET', recounts, machine) or '', '^(%-?%d+) (.*)$')
    count = bytes and { bytes = tonumber(bytes), last = last, changed = false } or false
    counts[machine] = count
  end
  if count and is_up_to(string.sub(change.object, #machine + 10), count.last) then
    count.bytes, count.changed = count.bytes + more, true
  end
end

-- Whether the label has the state that the change expects, including earlier changes in this call. Only reads.
function labels.fits(change)
  local words, at, key = ARGV, change.at, change.key
  local machine, version = words[at], words[at + 2]
  if version ~= '' then
    local current = versions[machine]
    if current == nil then
      current = redis.call('GET', machines .. machine .. ':current')
      versions[machine] = current
    end
    if current ~= version then return false end
  end
  local header = pending[key] or redis.call('GETRANGE', key .. ':data', 0, HEADER - 1)
  if header ~= words[at + 1] then return false end
  for entry = at + 9, change.log - 1, 3 do open_index(words[entry]) end
  grow(machine, change)
  pending[key] = string.sub(words[at + 3], 1, HEADER)
  return true
end

local function write_records()
  lists.call('MSET', nil, records)
  records = {}
end

local function write_index(index)
  lists.call('ZREM', index.key, index.removes)
  lists.call('ZADD', index.key, index.adds)
  index.adds, index.removes = {}, {}
end

-- Collects an entry of an index. A member that was collected before has an earlier change in this call, which is written
-- first.
local function put_entry(index, member, score)
  local scores = index.scores
  if scores[member] or #index.removes >= MAX_TOGETHER or #index.adds >= 2 * MAX_TOGETHER then write_index(index) end
  scores[member] = score
  if score == '' then
    index.removes[#index.removes + 1] = member
  else
    local adds = index.adds
    local n = #adds
    adds[n + 1], adds[n + 2] = score, member
  end
end

-- Appends to the log of a label. Another type of the key only costs the log its lines.
local function write_log(change)
  local words, key, at = ARGV, change.key .. ':log', change.log
  local keep, length = tonumber(words[at + 1]), redis.pcall('RPUSH', key, words[at + 3])
  if type(length) ~= 'number' then return end
  lists.call('RPUSH', key, words, at + 4, at + 2 + change.lines)
  length = length + change.lines - 1
  if length > keep then redis.call('LTRIM', key, -keep, -1) end
  redis.call('PEXPIRE', key, words[at + 2])
end

-- Writes an accepted change, or collects it; `id` is that of its first event, or 0.
function labels.write(change, id)
  local words, at = ARGV, change.at
  local key, record, ttl = change.key .. ':data', words[at + 3] .. struct.pack('>I8', id) .. words[at + 4], words[at + 5]
  if ttl ~= '' then
    -- An earlier change of this label is written before.
    write_records()
    redis.call('SET', key, record, 'PX', ttl)
  else
    local n = #records
    records[n + 1], records[n + 2] = key, record
    if n + 2 >= 2 * MAX_TOGETHER then write_records() end
  end
  for entry = at + 9, change.log - 1, 3 do put_entry(indexes[words[entry]], words[entry + 1], words[entry + 2]) end
  if change.lines > 0 then write_log(change) end
end

-- Must be called last: it writes what is collected, and wakes sleeping workers.
function labels.finish()
  write_records()
  for machine, bytes in pairs(grown) do
    local owner = 'machine:' .. machine
    if redis.call('HINCRBY', owners, owner, string.format('%.0f', bytes)) <= 0 then redis.call('HDEL', owners, owner) end
  end
  for machine, count in pairs(counts) do
    if count and count.changed then
      redis.call('HSET', recounts, machine, string.format('%.0f %s', count.bytes, count.last))
    end
  end
  for i = 1, #index_list do
    local index = index_list[i]
    write_index(index)
    if index.is_due_set then settle(index.key, machines .. 'next', machines .. 'wake') end
  end
end
