-- Removes a host name from the route table, including entries that were written manually, unless instances serve it.
-- KEYS[1]: string, serial
-- KEYS[2]: set, instances:<hostname>
-- KEYS[3]: set, instance_ids:<hostname>
-- KEYS[4]: string, logkey:<hostname>
-- KEYS[5]: string, policy:<hostname>
-- KEYS[6]: string, lineage of the table
-- KEYS[7]: stream, the changes of the table
-- KEYS[8]: hash, rules:<hostname>
-- KEYS[9]: hash, promotion:<hostname>
-- ARGV[1]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[2]: integer, the serial that the table must have reached
-- ARGV[3]: string, the host name
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- ARGV[5]: integer, revision of the removal
-- Returns {'done', serial}
--   {'in_use', serial}: instances serve it, so it is kept; its rules and its promotion are removed
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
-- Caller: store/table.rs, remove_host
local function main(shared)
  local serial_key, addresses, ids, logkey, policy, lineage_key, changes, rules, promotion =
    KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
  local epoch, floor, hostname, now = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
  local revision = tonumber(ARGV[5])

  local refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  if refused then
    return refused
  end
  local in_use = redis.call('SCARD', ids) > 0
  -- The removed key may be of any type.
  refused = shared.blocked({[changes] = 'stream', [rules] = 'hash', [promotion] = 'hash'}, in_use and {hostname} or {})
  if refused then
    return refused
  end
  now = shared.now(now)
  local ruled = tonumber(redis.call('HGET', rules, 'revision') or '0') > revision
  shared.unset(rules, revision)
  shared.unset(promotion, revision)
  local difference
  if in_use then
    difference = shared.refresh(hostname)
  else
    difference = redis.call('DEL', addresses, ids, logkey) > 0
    -- Rules that were set after the removal are kept.
    difference = (ruled and shared.refresh(hostname) or not ruled and redis.call('DEL', policy) > 0) or difference
  end
  if difference then
    -- A table that is being seeded records no changes: publishing its lineage at the end records the whole table.
    if epoch ~= '' then
      shared.log_change(changes, serial, now, in_use and 'host_altered' or 'host_removed', hostname)
    end
    serial = redis.call('INCR', serial_key)
  end
  return {in_use and 'in_use' or 'done', serial}
end

