-- Takes a host name out of the route table, entries made by hand included, unless instances serve it.
-- KEYS[1]: string, serial
-- KEYS[2]: set, instances:<hostname>
-- KEYS[3]: set, instance_ids:<hostname>
-- KEYS[4]: string, logkey:<hostname>
-- KEYS[5]: string, policy:<hostname>
-- KEYS[6]: string, lineage of the table
-- ARGV[1]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[2]: integer, the serial that the table must have reached
-- Returns {'done', serial}
--   {'in_use', serial}: instances serve it
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
-- Caller: routing/store/table.rs, remove_host
local serial_key, addresses, ids, logkey, policy, lineage_key =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local epoch, floor = ARGV[1], tonumber(ARGV[2])

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
if redis.call('SCARD', ids) > 0 then
  return {'in_use', serial}
end
if redis.call('DEL', addresses, ids, logkey, policy) > 0 then
  serial = redis.call('INCR', serial_key)
end
return {'done', serial}
