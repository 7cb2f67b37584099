-- Shared code of the scripts that change the route table. It is appended to them when they are compiled; they define
-- `main(shared)` above. Keys of host names are made from names: of the call, and of records that earlier calls wrote.

local shared = {}

-- Enough entries for a short outage of the fabric; dropped entries are published as one gap.
local CHANGES_KEPT = 4096
local TOMBSTONE_SECONDS = 3600
local KINDS = {['instances:'] = 'set', ['instance_ids:'] = 'set', ['logkey:'] = 'string', ['policy:'] = 'string',
  ['rules:'] = 'hash'}

-- The time: that of the caller, if given, otherwise the server's.
function shared.now(given)
  if given then
    return given
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A rejection if this is not the expected table, otherwise nil and its serial. Without an epoch, any table is accepted.
function shared.refused(lineage_key, serial_key, epoch, floor)
  local lineage = redis.call('GET', lineage_key) or ''
  local serial = tonumber(redis.call('GET', serial_key) or '0')
  if not serial then
    return {'blocked', serial_key}
  end
  if epoch ~= '' then
    if string.match(lineage, '^%S+') ~= epoch then
      return {'foreign', lineage}
    end
    if serial < floor then
      return {'behind', serial}
    end
  end
  return nil, serial
end

-- A rejection if another pacemaker took over the caller's lease. The caller stores the epoch when it writes.
function shared.fenced(fencing, lease, epoch)
  local stored = lease ~= '' and tonumber(redis.call('HGET', fencing, lease .. '.epoch') or '0') or 0
  return lease ~= '' and epoch < stored and {'fenced', stored} or nil
end

-- A rejection if a key of these types, or a key of these host names, could not be written. Redis does not undo a script
-- that fails halfway.
function shared.blocked(kinds, names)
  for key, kind in pairs(kinds) do
    local present = redis.call('TYPE', key).ok
    if present ~= kind and present ~= 'none' then
      return {'blocked', key}
    end
  end
  for _, name in ipairs(names) do
    for prefix, kind in pairs(KINDS) do
      local present = redis.call('TYPE', prefix .. name).ok
      if present ~= kind and present ~= 'none' then
        return {'blocked', prefix .. name}
      end
    end
  end
end

function shared.words(text)
  local words = {}
  for word in string.gmatch(text or '', '%S+') do
    words[#words + 1] = word
  end
  return words
end

-- JSON is composed from texts without control characters.
local function quote(text)
  return '"' .. string.gsub(text, '[\\"]', '\\%0') .. '"'
end

local function set(key, value)
  if redis.call('GET', key) == value then
    return false
  end
  redis.call('SET', key, value)
  return true
end

-- Whether the values of `field` differ in `list`.
local function uneven(list, field)
  for at = 2, #list do
    if list[at][field] ~= list[1][field] then
      return true
    end
  end
  return false
end

-- Rebuilds the edge's data of a name other than its sets, from the instances that serve it and from its rules. Returns
-- true if routers can see a difference.
function shared.refresh(name)
  local difference = false
  local entries, kinds, kind_count = {}, {}, 0
  local log_key, log_key_rank = nil, -1
  -- The list is as long as the number of the name's instances, which the pacemaker limits.
  for _, member in ipairs(redis.call('SMEMBERS', 'instance_ids:' .. name)) do
    local one = redis.call('HMGET', 'instance:' .. member, 'address', 'version_type_id', 'state', 'revision',
      'weight', 'unhealthy', 'joined_ms', 'standby')
    if one[1] then
      entries[#entries + 1] = one
      if not kinds[one[2]] then
        kinds[one[2]] = true
        kind_count = kind_count + 1
      end
      -- Requests of the name as a whole are counted under the latest registration. A draining instance is used only if
      -- all drain.
      local rank = tonumber(one[4]) + (one[3] == 'draining' and 0 or 2 ^ 50)
      if rank > log_key_rank then
        log_key, log_key_rank = one[2], rank
      end
    end
  end
  -- Without instances, the log key is kept, so that the name is answered with 503 instead of 404 until it is removed.
  if log_key then
    difference = set('logkey:' .. name, log_key)
  end
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  local rules, slow_start, by_version =
    unpack(redis.call('HMGET', 'rules:' .. name, 'members', 'slow_start', 'by_version'))
  local weighted = uneven(entries, 5)
  local log_keys, draining, standby, unhealthy, weights, joined = {}, {}, {}, {}, {}, {}
  for _, one in ipairs(entries) do
    local address = quote(one[1])
    if kind_count > 1 or by_version then
      log_keys[#log_keys + 1] = address .. ':' .. quote(one[2])
    end
    if one[3] == 'draining' then
      draining[#draining + 1] = address
    end
    if one[8] then
      standby[#standby + 1] = address
    end
    if one[6] then
      unhealthy[#unhealthy + 1] = address
    end
    if weighted then
      weights[#weights + 1] = address .. ':' .. one[5]
    end
    if slow_start and one[7] then
      joined[#joined + 1] = address .. ':' .. one[7]
    end
  end
  local members = {'"v":1'}
  local function add(field, opening, list, closing)
    if #list > 0 then
      members[#members + 1] = '"' .. field .. '":' .. opening .. table.concat(list, ',') .. closing
    end
  end
  add('log_keys', '{', log_keys, '}')
  add('draining', '[', draining, ']')
  add('standby', '[', standby, ']')
  add('unhealthy', '[', unhealthy, ']')
  add('weights', '{', weights, '}')
  add('joined', '{', joined, '}')
  if rules then
    members[#members + 1] = rules
  end
  if #members > 1 then
    return set('policy:' .. name, '{' .. table.concat(members, ',') .. '}') or difference
  end
  return redis.call('DEL', 'policy:' .. name) > 0 or difference
end

-- Replaces a resource by a tombstone, which lasts longer than any projection that may still arrive.
function shared.bury(key, revision)
  redis.call('DEL', key)
  redis.call('HSET', key, 'revision', string.format('%.0f', revision))
  redis.call('EXPIRE', key, TOMBSTONE_SECONDS)
end

-- Removes a resource of a name, unless the table has a later revision.
function shared.unset(key, revision)
  if tonumber(redis.call('HGET', key, 'revision') or '0') <= revision then
    shared.bury(key, revision)
  end
end

-- Records a change for events, with the serial that it creates and before that serial is visible. If an operator set
-- the serial back manually, the table must not stop: the list starts again, and the gap is detected.
function shared.log_change(changes, serial, now, kind, subject, ...)
  local id, at = string.format('%.0f-*', serial + 1), string.format('%.0f', now)
  local function add(...)
    return redis.pcall('XADD', changes, 'MAXLEN', '~', CHANGES_KEPT, id, 'kind', kind, 'subject', subject,
      'at_ms', at, ...)
  end
  if type(add(...)) == 'table' then
    redis.call('DEL', changes)
    add(...)
  end
end

return main(shared)
