-- The part of the publish script that changes a label in the step that publishes its events. It is appended to that
-- script at compile time (`open_labels`), with `lanes` in scope.
--
-- A label's record is `object:machine:<machine>:<label>:data`, a packed string. Only its header is read here: it has to
-- equal `expected`, so that a change computed from an older record is rejected and nothing happens. The ID of the
-- change's first event is written after the part that ends with the header (`head`), because only the script knows it.
--
-- The words of a change: machine (empty when the group has no change; then there are no others), the header that the
-- record must have (empty: the record must not exist), the version of the definition that must be current (empty: any),
-- the record before the ID, the record after it, ms after which it expires (empty: no expiry), the number of index
-- entries, and for each of these the key after `machine:`, the member, and its score (empty: it is removed); then the
-- number of lines for the label's log (`object:machine:<machine>:<label>:log`), and, unless it is 0, how many lines the log
-- keeps, ms after which it expires, and the lines.

local labels = {}
local machines = string.match(lanes.objects, '^(.*)object:$') .. 'machine:'
local due_key = machines .. 'due'
-- Length of a header in bytes: format, incarnation, visit, revision.
local HEADER = 21

local pending, versions, seen, wake = {}, {}, {}, nil

local function expect(kind, key)
  if not seen[key] then
    lanes.expect(kind, key)
    seen[key] = true
  end
end

-- Reads the lines for the log from the word at `at`. Returns them, or nil, and the position of the next word.
local function read_log(at, object)
  local words, lines = ARGV, tonumber(ARGV[at])
  if lines == 0 then return nil, at + 1 end
  local log = { key = lanes.objects .. object .. ':log', keep = words[at + 1], ttl = words[at + 2] }
  log.lines = { unpack(words, at + 3, at + 2 + lines) }
  return log, at + 3 + lines
end

-- Reads the words of a change. Returns it, and the position of the next word. The index entries stay one flat array.
function labels.read(at, object)
  local words = ARGV
  if words[at] == '' then return nil, at + 1 end
  local ends = at + 7 + 3 * words[at + 6]
  local change = {
    key = lanes.objects .. object .. ':data', machine = words[at], expected = words[at + 1], version = words[at + 2],
    head = words[at + 3], tail = words[at + 4], ttl = words[at + 5], entries = { unpack(words, at + 7, ends - 1) },
  }
  change.log, ends = read_log(ends, object)
  return change, ends
end

-- Whether the label has the state that the change expects, including earlier changes in this call. Only reads.
function labels.fits(change)
  if change.version ~= '' then
    local current = versions[change.machine]
    if current == nil then
      current = redis.call('GET', machines .. change.machine .. ':current')
      versions[change.machine] = current
    end
    if current ~= change.version then return false end
  end
  local header = pending[change.key] or redis.call('GETRANGE', change.key, 0, HEADER - 1)
  if header ~= change.expected then return false end
  local entries = change.entries
  for at = 1, #entries, 3 do expect('zset', machines .. entries[at]) end
  if change.log then expect('list', change.log.key) end
  pending[change.key] = string.sub(change.head, 1, HEADER)
  return true
end

-- Writes an accepted change; `id` is that of its first event, or 0.
function labels.write(change, id)
  local record, entries = change.head .. struct.pack('>I8', id) .. change.tail, change.entries
  if change.ttl ~= '' then
    redis.call('SET', change.key, record, 'PX', change.ttl)
  else
    redis.call('SET', change.key, record)
  end
  for at = 1, #entries, 3 do
    local key, member, score = machines .. entries[at], entries[at + 1], entries[at + 2]
    if score == '' then
      redis.call('ZREM', key, member)
    else
      redis.call('ZADD', key, score, member)
      -- Workers sleep until the earliest due time. An earlier one is published to them.
      if key == due_key and redis.call('ZRANK', key, member) == 0 then wake = score end
    end
  end
  local log = change.log
  if log then
    redis.call('RPUSH', log.key, unpack(log.lines))
    redis.call('LTRIM', log.key, -log.keep, -1)
    redis.call('PEXPIRE', log.key, log.ttl)
  end
end

-- Must be called last: it wakes sleeping workers, once per call.
function labels.finish()
  if wake then redis.call('PUBLISH', machines .. 'wake', wake) end
end
