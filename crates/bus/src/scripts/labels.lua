-- What the publish script needs to change a label in the step that publishes its events. Not a script of its own: it is
-- appended to that script at compile time (`open_labels`), which knows `lanes`.
--
-- A label's record is `object:machine:<machine>:<label>:data`, a packed string. Only its beginning is looked at here: the
-- header that `expected` has to equal, so that a change computed from an older record is refused and nothing happens.
-- The id of the change's first event goes behind the header's last byte (`head`), because only the script knows it.
--
-- The words of a change: machine (empty when the group brings none; then there are no others), what the record must
-- begin with (empty: there must be none), the version of the definition that must be current (empty: any), the record
-- before the id, the record behind it, ms after which it is forgotten (empty: never), the number of index entries, and
-- for each of these the key behind `machine:`, the member, and its score (empty: it is taken out).

local labels = {}
local machines = string.match(lanes.objects, '^(.*)object:$') .. 'machine:'
local due_key = machines .. 'due'
-- Bytes of a header: format, incarnation, visit, revision.
local HEADER = 21

local pending, versions, seen, wake = {}, {}, {}, nil

local function expect_zset(key)
  if not seen[key] then
    lanes.expect('zset', key)
    seen[key] = true
  end
end

-- Reads the words of a change; returns it and where the next word is.
function labels.read(at, object)
  if ARGV[at] == '' then return nil, at + 1 end
  local change = {
    key = lanes.objects .. object .. ':data', machine = ARGV[at], expected = ARGV[at + 1], version = ARGV[at + 2],
    head = ARGV[at + 3], tail = ARGV[at + 4], ttl = ARGV[at + 5], first = at + 7, entries = tonumber(ARGV[at + 6]),
  }
  return change, at + 7 + 3 * change.entries
end

-- Whether the label is as the change expects it, changes before it in this call included. Reads only.
function labels.fits(change)
  if change.version ~= '' then
    local current = versions[change.machine]
    if current == nil then
      current = redis.call('GET', machines .. change.machine .. ':current')
      versions[change.machine] = current
    end
    if current ~= change.version then return false end
  end
  local stands = pending[change.key] or redis.call('GETRANGE', change.key, 0, HEADER - 1)
  if stands ~= change.expected then return false end
  for entry = 0, change.entries - 1 do expect_zset(machines .. ARGV[change.first + 3 * entry]) end
  pending[change.key] = string.sub(change.head, 1, HEADER)
  return true
end

-- Writes a change that fits; `id` is that of its first event, or 0.
function labels.write(change, id)
  local record = change.head .. struct.pack('>I8', id) .. change.tail
  if change.ttl ~= '' then
    redis.call('SET', change.key, record, 'PX', change.ttl)
  else
    redis.call('SET', change.key, record)
  end
  for entry = 0, change.entries - 1 do
    local at = change.first + 3 * entry
    local key, member, score = machines .. ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if score == '' then
      redis.call('ZREM', key, member)
    else
      redis.call('ZADD', key, score, member)
      -- Who sleeps until the earliest time is told of an earlier one.
      if key == due_key and redis.call('ZRANK', key, member) == 0 then wake = score end
    end
  end
end

-- To be called last: wakes sleepers, once for the call.
function labels.finish()
  if wake then redis.call('PUBLISH', machines .. 'wake', wake) end
end
