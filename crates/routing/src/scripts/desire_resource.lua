-- Changes or removes the desired resource of a name (the policy of a host, the certificate of a server name). Completed
-- by policy_index.lua or certificate_index.lua.
-- KEYS[1]: hash, name → resource with its revision as JSON
-- KEYS[2]: string, revision of the latest change
-- KEYS[3]: zset, changes that the table may not have yet, by revision
-- KEYS[4]: hash, the state last given to the routes primary: epoch, serial
-- KEYS[5...]: hashes or sets, the keys of the index
-- ARGV[1]: string, name
-- ARGV[2]: string, the JSON after the revision; empty = remove
-- ARGV[3]: integer, the highest revision that the caller has ever seen
-- ARGV[4]: string, the revision that the caller read; empty = any, 0 = the name has no resource, and what the table
--   may still have is to be removed
-- ARGV[5]: string, the member of KEYS[3]
-- ARGV[6...]: strings, the arguments of the index
-- Returns {'accepted', revision, serial of the table, lineage of the table}
--   {'same', revision that the table may not have yet or 0, serial, lineage}: unchanged
--   {'changed'}: the revision is not the one that the caller read; read again
--   {'regressed', revision}: this server has lost changes; reconcile first
--   {'uninitialized'}: this server is empty; reconcile first
-- Caller: store/resource.rs, desire_resource
local index = {}

local function main()
  local resources, revisions, unprojected, route_table = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local index_keys = lists.copy(KEYS, 5, #KEYS)
  local name, tail, floor, expected, member = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

  local lineage, serial = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
  if not lineage then
    return {'uninitialized'}
  end
  serial = tonumber(serial or '0')
  local latest = tonumber(redis.call('GET', revisions) or '0')
  if latest < floor then
    return {'regressed', latest}
  end
  local stored = redis.call('HGET', resources, name) or ''
  local stored_revision = string.match(stored, '^{"revision":(%d+),') or ''
  if expected ~= '' and (stored_revision == '' and '0' or stored_revision) ~= expected then
    return {'changed'}
  end
  if expected ~= '0' and string.sub(stored, #'{"revision":' + #stored_revision + 1) == tail then
    return {'same', tonumber(redis.call('ZSCORE', unprojected, member) or '0'), serial, lineage}
  end
  local revision = string.format('%.0f', redis.call('INCR', revisions))
  if tail == '' then
    redis.call('HDEL', resources, name)
    index.remove(index_keys, name)
  else
    redis.call('HSET', resources, name, '{"revision":' .. revision .. tail)
    index.add(index_keys, name, lists.copy(ARGV, 6, #ARGV))
  end
  redis.call('ZADD', unprojected, revision, member)
  return {'accepted', tonumber(revision), serial, lineage}
end

