-- Changes the desired state of one instance, if it is still the one that the caller read: registers, updates or removes
-- it. A different instance at the same address is removed in the same step, because an address has one owner.
-- KEYS[1]: hash, instance id → record as JSON
-- KEYS[2]: zset, index of instance ids, all of score 0
-- KEYS[3]: hash, address → id of its owner
-- KEYS[4]: hash, host name → version type last registered for it
-- KEYS[5]: zset, index of host names, all of score 0
-- KEYS[6]: string, revision of the latest change
-- KEYS[7]: zset, changed and not known to be in the table, by revision
-- KEYS[8]: zset, registered and not known to be in the membership sets, by revision
-- KEYS[9]: hash, the state last given to the routes primary: epoch, serial
-- KEYS[10]: hash, instance id → the token that registered it
-- KEYS[11]: hash, token → the number of its instances
-- KEYS[12]: set, `h:` and each new host name, `v:` and each new version type that the token registered within a day
-- KEYS[13]: hash, host name → its promotion with its revision as JSON
-- KEYS[14]: zset, version type → when it was last registered, unix s
-- ARGV[1]: string, instance id
-- ARGV[2]: string, the record as the caller read it; empty = there was none
-- ARGV[3]: string, the new record as JSON without its opening brace and revision; empty = remove
-- ARGV[4]: string, address in the record read; empty = none
-- ARGV[5]: string, address in the new record; empty = none
-- ARGV[6]: string, id of that address's owner as the caller read it; empty = none, or the instance itself
-- ARGV[7]: string, the owner's record as the caller read it; empty = none
-- ARGV[8]: integer, the highest revision that the caller has ever seen
-- ARGV[9]: string, version type of the new record
-- ARGV[10]: string, the token that registers the instance; empty = the registrant stays
-- ARGV[11]: integer, the maximum number of instances of that token; 0 = no limit
-- ARGV[12]: integer, the maximum number of these names; 0 = no limit
-- ARGV[13]: string, the revisions of the promotions of these names as the caller read them, separated by spaces,
--   0 = none; empty = they do not matter
-- ARGV[14...]: strings, host names of the new record
-- Returns {'accepted', revision, serial of the table, lineage of the table}
--   {'changed'}: the record, the owner or a promotion has changed in the meantime; read again
--   {'limited'}: the token has the maximum number of instances
--   {'names', seconds}: the token has registered the maximum number of new names, and may register more after this time
--   {'regressed', revision}: this server has lost changes; reconcile first
--   {'uninitialized'}: this server is empty; reconcile first
-- Caller: store/desired.rs, desire
local instances, index, addresses = KEYS[1], KEYS[2], KEYS[3]
local hosts, host_index = KEYS[4], KEYS[5]
local revisions, unprojected, unreported, route_table = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local registrants, counts, names, promotions, version_types = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local id, expected, record = ARGV[1], ARGV[2], ARGV[3]
local address_before, address_after = ARGV[4], ARGV[5]
local owner, owner_record = ARGV[6], ARGV[7]
local floor, version_type = tonumber(ARGV[8]), ARGV[9]
local registrant, max_instances, max_names = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
local FIRST_HOSTNAME = 14
-- How long new names are counted, in seconds.
local NAMES_SECONDS = 86400
-- How long a version type is not new after its last registration, in seconds; and how many that are older are removed in a call.
local KNOWN_SECONDS, MAX_FORGOTTEN = 30 * 86400, 10

local lineage, serial = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if not lineage then
  return {'uninitialized'}
end
local latest = tonumber(redis.call('GET', revisions) or '0')
if latest < floor then
  return {'regressed', latest}
end
if (redis.call('HGET', instances, id) or '') ~= expected then
  return {'changed'}
end
if address_after ~= '' then
  local present = redis.call('HGET', addresses, address_after) or ''
  if present == id then
    present = ''
  end
  if present ~= owner then
    return {'changed'}
  end
end
if owner ~= '' and (redis.call('HGET', instances, owner) or '') ~= owner_record then
  return {'changed'}
end
local at_name = FIRST_HOSTNAME
for promoted in string.gmatch(ARGV[13], '%d+') do
  local promotion = redis.call('HGET', promotions, ARGV[at_name]) or ''
  if (string.match(promotion, '^{"revision":(%d+),') or '0') ~= promoted then
    return {'changed'}
  end
  at_name = at_name + 1
end

-- Whether the instance would exceed the maximum of its token. The instance that loses its address may belong to the
-- same token.
local function is_one_too_many()
  if max_instances == 0 or redis.call('HGET', registrants, id) == registrant then
    return false
  end
  local count = tonumber(redis.call('HGET', counts, registrant) or '0')
  if owner ~= '' and redis.call('HGET', registrants, owner) == registrant then
    count = count - 1
  end
  return count >= max_instances
end
if registrant ~= '' and is_one_too_many() then
  return {'limited'}
end

-- The host names and the version type of the new record that were not registered before, and that are not counted for the token
-- yet: they remain after the instance, as hosts and as statistics. Reads only.
local function new_names()
  local found, seen = {}, {}
  local function add(name)
    if not seen[name] and redis.call('SISMEMBER', names, name) == 0 then
      found[#found + 1] = name
    end
    seen[name] = true
  end
  local is_known = redis.call('ZSCORE', version_types, version_type)
  for at = FIRST_HOSTNAME, #ARGV do
    local present = redis.call('HGET', hosts, ARGV[at])
    if not present then
      add('h:' .. ARGV[at])
    end
    is_known = is_known or present == version_type
  end
  if not is_known then
    add('v:' .. version_type)
  end
  return found
end
local fresh, now, outdated = {}, tonumber(redis.call('TIME')[1]), {}
if record ~= '' then
  outdated = redis.call('ZRANGE', version_types, '-inf', now - KNOWN_SECONDS, 'BYSCORE', 'LIMIT', 0, MAX_FORGOTTEN)
end
if max_names > 0 and record ~= '' then
  fresh = new_names()
  if #fresh > 0 and redis.call('SCARD', names) + #fresh > max_names then
    return {'names', redis.call('TTL', names)}
  end
end

local function set_registrant(of, token)
  local before = redis.call('HGET', registrants, of)
  if before == token then
    return
  end
  if before and redis.call('HINCRBY', counts, before, -1) <= 0 then
    redis.call('HDEL', counts, before)
  end
  if token then
    redis.call('HSET', registrants, of, token)
    redis.call('HINCRBY', counts, token, 1)
  else
    redis.call('HDEL', registrants, of)
  end
end

-- Lua's own conversion of a large number to text would lose digits.
local function next_revision()
  return string.format('%.0f', redis.call('INCR', revisions))
end

local function remove(gone, address)
  redis.call('HDEL', instances, gone)
  redis.call('ZREM', index, gone)
  redis.call('ZREM', unreported, gone)
  set_registrant(gone, false)
  if address ~= '' and redis.call('HGET', addresses, address) == gone then
    redis.call('HDEL', addresses, address)
  end
end

if owner ~= '' then
  remove(owner, address_after)
  redis.call('ZADD', unprojected, next_revision(), owner)
end
-- The new owner gets the later of the two revisions, so its projection wins regardless of the order in which they
-- arrive.
local revision = next_revision()
if record == '' then
  remove(id, address_before)
else
  if address_before ~= address_after and address_before ~= '' then
    redis.call('HDEL', addresses, address_before)
  end
  redis.call('HSET', instances, id, '{"revision":' .. revision .. ',' .. record)
  redis.call('ZADD', index, 0, id)
  redis.call('HSET', addresses, address_after, id)
  redis.call('ZADD', unreported, revision, id)
  if registrant ~= '' then
    set_registrant(id, registrant)
  end
  for _, name in ipairs(fresh) do
    redis.call('SADD', names, name)
  end
  if #fresh > 0 and redis.call('TTL', names) < 0 then
    redis.call('EXPIRE', names, NAMES_SECONDS)
  end
  for _, name in ipairs(outdated) do
    redis.call('ZREM', version_types, name)
  end
  redis.call('ZADD', version_types, now, version_type)
  -- At most a hundred names.
  for at = FIRST_HOSTNAME, #ARGV do
    redis.call('HSET', hosts, ARGV[at], version_type)
    redis.call('ZADD', host_index, 0, ARGV[at])
  end
end
redis.call('ZADD', unprojected, revision, id)
return {'accepted', tonumber(revision), tonumber(serial or '0'), lineage}
