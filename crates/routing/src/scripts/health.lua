-- Records the prober's result that an instance is unhealthy, or healthy again. The edge reads it in the policies of the
-- names that the instance serves, with one serial.
-- KEYS[1]: string, serial
-- KEYS[2]: hash, instance:<id>
-- KEYS[3]: set, ids of the instances whose health is to be checked
-- KEYS[4]: string, lineage of the table
-- KEYS[5]: hash, fencing epochs of leases
-- KEYS[6]: stream, the changes of the table
-- ARGV[1]: string, instance id
-- ARGV[2]: string, the address that was checked
-- ARGV[3]: string, why it is unhealthy; empty = it is healthy
-- ARGV[4]: string, the newest epoch that the table must have
-- ARGV[5]: integer, the serial that the table must have reached
-- ARGV[6]: integer, unix ms; empty = this server's clock
-- ARGV[7]: string, name of the lease under which this is done
-- ARGV[8]: integer, fencing epoch of that lease
-- Returns {'done', serial}
--   {'same', serial}: this result was recorded before
--   {'gone', serial}: the instance is not at that address, or it is not to be checked
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
--   {'fenced', epoch}: another pacemaker took the lease over
-- Caller: store/health.rs, diagnose
local function main(shared)
  local serial_key, instance_key, checks, lineage_key, fencing, changes =
    KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local id, address, why = ARGV[1], ARGV[2], ARGV[3]
  local epoch, floor, now = ARGV[4], tonumber(ARGV[5]), shared.now(tonumber(ARGV[6]))
  local lease, fencing_epoch = ARGV[7], tonumber(ARGV[8])

  local refused = shared.fenced(fencing, lease, fencing_epoch)
  if refused then
    return refused
  end
  local serial
  refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  if refused then
    return refused
  end
  local state, at_address, hostnames, unhealthy, version_type, node, weight = unpack(redis.call('HMGET', instance_key,
    'state', 'address', 'hostnames', 'unhealthy', 'version_type_id', 'node_id', 'weight'))
  local stands = state == 'active' or state == 'draining'
  if not stands or at_address ~= address or redis.call('SISMEMBER', checks, id) == 0 then
    return {'gone', serial}
  end
  if (why ~= '') == (unhealthy ~= false) then
    return {'same', serial}
  end
  local names = shared.words(hostnames)
  refused = shared.blocked({[changes] = 'stream'}, names)
  if refused then
    return refused
  end

  local at = string.format('%.0f', now)
  if why ~= '' then
    redis.call('HSET', instance_key, 'unhealthy', why, 'health_ms', at)
  else
    redis.call('HDEL', instance_key, 'unhealthy')
    -- On hosts with slow start, it is treated like a new instance.
    redis.call('HSET', instance_key, 'health_ms', at, 'joined_ms', at)
  end
  redis.call('HSET', fencing, lease .. '.epoch', ARGV[8])
  local difference = false
  for _, name in ipairs(names) do
    if shared.refresh(name) then
      difference = true
    end
  end
  if difference then
    shared.log_change(changes, serial, now, why ~= '' and 'failing' or 'recovered', id, 'address', address,
      'hostnames', hostnames, 'version_type_id', version_type or '', 'node_id', node or '', 'weight', weight or '',
      'health', why)
    serial = redis.call('INCR', serial_key)
  end
  return {'done', serial}
end

