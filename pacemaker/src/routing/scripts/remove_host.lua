-- Takes a host name out of the route table, entries made by hand included, unless instances serve it.
-- KEYS[1]: string, serial
-- KEYS[2]: set, instances:<hostname>
-- KEYS[3]: set, instance_ids:<hostname>
-- KEYS[4]: string, logkey:<hostname>
-- KEYS[5]: string, policy:<hostname>
-- KEYS[6]: string, lineage of the table
-- KEYS[7]: stream, what changed in the table
-- ARGV[1]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[2]: integer, the serial that the table must have reached
-- ARGV[3]: string, the host name
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- Returns {'done', serial}
--   {'in_use', serial}: instances serve it
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
-- Caller: routing/store/table.rs, remove_host
local serial_key, addresses, ids, logkey, policy, lineage_key, changes =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local epoch, floor, hostname, now = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local CHANGES_KEPT = 4096

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
local present = redis.call('TYPE', changes).ok
if present ~= 'stream' and present ~= 'none' then
  return {'blocked', changes}
end
if redis.call('DEL', addresses, ids, logkey, policy) > 0 then
  -- A table that is being seeded tells nothing: its lineage does, in the end.
  if epoch ~= '' then
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    local function tell()
      return redis.pcall('XADD', changes, 'MAXLEN', '~', CHANGES_KEPT, string.format('%.0f-*', serial + 1),
        'kind', 'host_removed', 'subject', hostname, 'at_ms', string.format('%.0f', now))
    end
    -- As in apply.lua: a serial that was set back by hand begins the list anew.
    if type(tell()) == 'table' then
      redis.call('DEL', changes)
      tell()
    end
  end
  serial = redis.call('INCR', serial_key)
end
return {'done', serial}
