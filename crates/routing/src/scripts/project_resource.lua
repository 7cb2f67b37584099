-- Writes a resource of a name (the policy of a host, the certificate of a server name) to the route table, or removes
-- it there. Raises the serial if routers can see a difference. Completed by policy_table.lua or certificate_table.lua,
-- and by shared.lua.
-- KEYS[1]: string, serial
-- KEYS[2]: string, the highest revision applied
-- KEYS[3]: string, lineage of the table
-- KEYS[4]: stream, the changes of the table
-- KEYS[5]: hash, revision and fields of the resource: rules:<hostname> | certificate:<server name>
-- KEYS[6...]: string, the data for routers, if the resource has a key for that: cert:<server name>
-- ARGV[1]: string, name
-- ARGV[2]: integer, revision of the resource
-- ARGV[3]: string, the resource; empty = remove
-- ARGV[4]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[5]: integer, the serial that the table must have reached
-- ARGV[6]: integer, unix ms; empty = this server's clock
-- ARGV[7...]: strings, further fields of KEYS[5]: names and values in turn
-- Returns {'done', serial}
--   {'same', serial}: the table had this revision before
--   {'stale', revision}: the table has a later revision
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key has an unexpected type
-- Caller: store/resource.rs, project_resource
local resource = {}

local function main(shared)
  local serial_key, highest, lineage_key, changes, about = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local text_key = KEYS[#KEYS]
  local name, revision, text = ARGV[1], tonumber(ARGV[2]), ARGV[3]
  local epoch, floor, now = ARGV[4], tonumber(ARGV[5]), shared.now(tonumber(ARGV[6]))
  local fields = lists.copy(ARGV, 7, #ARGV)

  local refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  refused = refused or shared.blocked({[changes] = 'stream', [highest] = 'string', [about] = 'hash'}, {})
    or resource.blocked(shared, name, text_key)
  if refused then
    return refused
  end
  local stored = tonumber(redis.call('HGET', about, 'revision') or '0')
  if stored > revision then
    return {'stale', stored}
  elseif stored == revision then
    return {'same', serial}
  end
  if text == '' then
    shared.bury(about, revision)
  else
    redis.call('DEL', about)
    redis.call('HSET', about, 'revision', ARGV[2])
    lists.call('HSET', about, resource.fields(text, fields))
  end
  if revision > tonumber(redis.call('GET', highest) or '0') then
    redis.call('SET', highest, ARGV[2])
  end
  if resource.publish(shared, name, text, text_key) then
    -- A table that is being seeded announces no changes: at the end of the seeding, the whole table is announced.
    if epoch ~= '' then
      shared.log_change(changes, serial, now, resource.change(text), name, resource.event_data(text, fields))
    end
    serial = redis.call('INCR', serial_key)
  end
  return {'done', serial}
end

