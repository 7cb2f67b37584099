-- Updates the route table to the desired state of one instance, or removes it because its lease or drain has ended:
-- sets of addresses and ids, log keys, policies, ownership, deadlines, and the serial if routers can see a difference.
-- KEYS[1]: string, serial
-- KEYS[2]: hash, instance:<id>
-- KEYS[3]: hash, address → id of its owner
-- KEYS[4]: zset, instance id by end of lease in unix ms
-- KEYS[5]: zset, instance id by end of drain, or of its time on standby, in unix ms
-- KEYS[6]: string, the highest revision applied
-- KEYS[7]: string, lineage of the table
-- KEYS[8]: hash, fencing epochs of leases
-- KEYS[9]: stream, the changes of the table
-- KEYS[10]: set, ids of the instances whose health is to be checked
-- ARGV[1]: string, instance id
-- ARGV[2]: integer, revision of the desired state
-- ARGV[3]: string, active | standby | draining | removed | expired; for routers, standby is draining without sessions
-- ARGV[4]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[5]: integer, the serial that the table must have reached
-- ARGV[6]: integer, unix ms; empty = this server's clock
-- ARGV[7]: string, name of the lease under which this is done; empty = none
-- ARGV[8]: integer, fencing epoch of that lease
-- ARGV[9]: string, address
-- ARGV[10]: string, version type id
-- ARGV[11]: string, node id; empty = none
-- ARGV[12]: integer, weight
-- ARGV[13]: integer, length of the lease in ms; 0 = none
-- ARGV[14]: integer, end of the drain, or of its time on standby, in unix ms; 0 = none
-- ARGV[15]: string, the record as JSON
-- ARGV[16]: integer, 1 when its health is to be checked else 0
-- ARGV[17...]: strings, host names
-- Returns {'done', serial, 1 if routers see a difference else 0, id that lost the address or ''}
--   {'same', serial}: the table has this revision already
--   {'gone', serial}: this revision was in the table and has expired since
--   {'stale', revision}: the table has a later revision
--   {'superseded', id}: the address belongs to a later registration
--   {'early', ms}: nothing has ended; the next end, or 0
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
--   {'fenced', epoch}: another pacemaker took the lease over
-- Caller: store/table.rs, apply
local function main(shared)
  local serial_key, instance_key, addresses = KEYS[1], KEYS[2], KEYS[3]
  local leases, drains, highest = KEYS[4], KEYS[5], KEYS[6]
  local lineage_key, fencing, changes, checks = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
  local id, revision, state = ARGV[1], tonumber(ARGV[2]), ARGV[3]
  local epoch, floor, now = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local lease, fencing_epoch = ARGV[7], tonumber(ARGV[8])
  local address, version_type, node, weight = ARGV[9], ARGV[10], ARGV[11], ARGV[12]
  local lease_ms, drain_deadline_ms = tonumber(ARGV[13]), tonumber(ARGV[14])
  local record, checked = ARGV[15], ARGV[16] == '1'
  local FIRST_HOSTNAME = 17
  local standby = state == 'standby'
  if standby then
    state = 'draining'
  end
  local TOMBSTONE_SECONDS = 3600
  now = shared.now(now)

  -- 1. Is this the right table, and the right caller?
  local fenced = shared.fenced(fencing, lease, fencing_epoch)
  if fenced then
    return fenced
  end
  local refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  if refused then
    return refused
  end

  -- 2. Is this the latest revision of the instance?
  local stored = redis.call('HMGET', instance_key, 'revision', 'state', 'address', 'hostnames', 'version_type_id',
    'node_id', 'weight')
  local stored_revision = tonumber(stored[1] or '0')
  local stored_live = stored[2] == 'active' or stored[2] == 'draining'
  local old_address = stored_live and stored[3] or nil
  local old_hostnames = stored_live and shared.words(stored[4]) or {}
  local wanted = state == 'active' or state == 'draining'
  local drained = false

  if stored_revision > revision then
    return {'stale', stored_revision}
  end
  if state == 'expired' then
    if stored_revision < revision or not stored_live then
      return {'same', serial}
    end
    local lease_end = tonumber(redis.call('ZSCORE', leases, id) or math.huge)
    local drain_end = tonumber(redis.call('ZSCORE', drains, id) or math.huge)
    -- No heartbeat could arrive while no pacemaker ran, so leases last for a full period from the time when one runs
    -- again.
    local resumed = tonumber(redis.call('HGET', fencing, 'sweeper.resumed_ms') or '0')
    local period = tonumber(redis.call('HGET', instance_key, 'lease_ms') or '0')
    if lease_end < resumed + period then
      lease_end = resumed + period
      redis.call('ZADD', leases, lease_end, id)
    end
    local due = math.min(lease_end, drain_end)
    if due > now then
      return {'early', due == math.huge and 0 or due}
    end
    drained = drain_end <= now
  elseif stored_revision == revision then
    if wanted and not stored_live then
      return {'gone', serial}
    end
    return {'same', serial}
  end

  local new_hostnames, is_new = {}, {}
  local displaced, displaced_revision, displaced_hostnames, displaced_as = '', nil, {}, nil
  if wanted then
    for at = FIRST_HOSTNAME, #ARGV do
      new_hostnames[#new_hostnames + 1] = ARGV[at]
      is_new[ARGV[at]] = true
    end
    local owner = redis.call('HGET', addresses, address)
    if owner and owner ~= id then
      -- Only the script knows the owner. Its key is derived from the declared one: it has the same pattern and server.
      local theirs = redis.call('HMGET', 'instance:' .. owner, 'revision', 'hostnames', 'version_type_id', 'node_id',
        'weight')
      displaced_as = theirs
      displaced_revision = tonumber(theirs[1] or '0')
      if displaced_revision > revision then
        return {'superseded', owner}
      end
      displaced, displaced_hostnames = owner, shared.words(theirs[2])
    end
  end

  -- 3. Would every write succeed? Redis does not undo a script that fails halfway.
  local touched, touched_set = {}, {}
  for _, names in ipairs({old_hostnames, new_hostnames, displaced_hostnames}) do
    for _, name in ipairs(names) do
      if not touched_set[name] then
        touched_set[name] = true
        touched[#touched + 1] = name
      end
    end
  end
  local blocked = shared.blocked({[leases] = 'zset', [drains] = 'zset', [addresses] = 'hash', [highest] = 'string',
    [changes] = 'stream', [checks] = 'set'}, touched)
  if blocked then
    return blocked
  end

  -- 4. Write.
  local difference = false
  local function note(count)
    if count ~= 0 then
      difference = true
    end
  end

  local function bury(gone, at_revision, how)
    -- A tombstone lasts longer than any projection that may still arrive, so that none restores a removed instance.
    local key = 'instance:' .. gone
    redis.call('DEL', key)
    redis.call('HSET', key, 'state', how, 'revision', string.format('%.0f', at_revision))
    redis.call('EXPIRE', key, TOMBSTONE_SECONDS)
    redis.call('ZREM', leases, gone)
    redis.call('ZREM', drains, gone)
    redis.call('SREM', checks, gone)
  end

  if displaced ~= '' then
    for _, name in ipairs(displaced_hostnames) do
      note(redis.call('SREM', 'instance_ids:' .. name, displaced))
      if not is_new[name] then
        note(redis.call('SREM', 'instances:' .. name, address))
      end
    end
    bury(displaced, displaced_revision, 'removed')
  end
  if old_address then
    -- The address still belongs to this instance: another owner would have removed it.
    local moved = old_address ~= address or not wanted
    for _, name in ipairs(old_hostnames) do
      if moved or not is_new[name] then
        note(redis.call('SREM', 'instances:' .. name, old_address))
      end
      if not is_new[name] then
        note(redis.call('SREM', 'instance_ids:' .. name, id))
      end
    end
    if moved then
      redis.call('HDEL', addresses, old_address)
    end
  end
  if wanted then
    for _, name in ipairs(new_hostnames) do
      note(redis.call('SADD', 'instances:' .. name, address))
      note(redis.call('SADD', 'instance_ids:' .. name, id))
    end
    redis.call('HSET', addresses, address, id)
    redis.call('HSET', instance_key, 'revision', ARGV[2], 'state', state, 'address', address,
      'hostnames', table.concat(new_hostnames, ' '), 'version_type_id', version_type, 'node_id', node,
      'weight', weight, 'lease_ms', ARGV[13], 'record', record)
    if standby then
      redis.call('HSET', instance_key, 'standby', '1')
    else
      redis.call('HDEL', instance_key, 'standby')
    end
    redis.call('PERSIST', instance_key)
    -- A different address is a different process: new, with unknown health. An instance without a check cannot be
    -- unhealthy.
    local arrived = old_address ~= address
    if arrived then
      redis.call('HSET', instance_key, 'joined_ms', string.format('%.0f', now))
    end
    if arrived or not checked then
      redis.call('HDEL', instance_key, 'unhealthy', 'health_ms')
    end
    if arrived and checked and standby then
      -- A caller that waits for the instance to be healthy must not read a missing result as healthy.
      redis.call('HSET', instance_key, 'unhealthy', 'no check has passed yet')
    end
    redis.call(checked and 'SADD' or 'SREM', checks, id)
    if lease_ms > 0 then
      redis.call('ZADD', leases, now + lease_ms, id)
    else
      redis.call('ZREM', leases, id)
    end
    if drain_deadline_ms > 0 then
      redis.call('ZADD', drains, drain_deadline_ms, id)
    else
      redis.call('ZREM', drains, id)
    end
  else
    bury(id, revision, state)
  end

  -- 5. The edge's data other than the sets.
  for _, name in ipairs(touched) do
    if shared.refresh(name) then
      difference = true
    end
  end
  if revision > tonumber(redis.call('GET', highest) or '0') then
    redis.call('SET', highest, ARGV[2])
  end
  if lease ~= '' then
    redis.call('HSET', fencing, lease .. '.epoch', ARGV[8])
  end

  -- 6. Log the change with the serial that it creates, before that serial is visible. While a table is seeded, no
  --    changes are logged: publishing its lineage at the end logs the whole table.
  local function log_change(kind, of, at_address, at_hostnames, as, by)
    shared.log_change(changes, serial, now, kind, of, 'address', at_address or '', 'hostnames', at_hostnames or '',
      'version_type_id', as[1] or '', 'node_id', as[2] or '', 'weight', as[3] or '', 'displaced_by', by or '')
  end

  if difference and epoch ~= '' then
    if displaced ~= '' then
      local as = {displaced_as[3], displaced_as[4], displaced_as[5]}
      log_change('removed', displaced, address, displaced_as[2], as, id)
    end
    if wanted then
      local kind = 'registered'
      if stored_live then
        local drains_now, drained_before = state == 'draining', stored[2] == 'draining'
        kind = drains_now == drained_before and 'altered' or drains_now and 'draining' or 'resumed'
      end
      log_change(kind, id, address, table.concat(new_hostnames, ' '), {version_type, node, weight})
    else
      local kind = state == 'removed' and 'removed' or drained and 'drained' or 'lease_expired'
      log_change(kind, id, stored[3], stored[4], {stored[5], stored[6], stored[7]})
    end
  end
  if difference then
    serial = redis.call('INCR', serial_key)
  end
  return {'done', serial, difference and 1 or 0, displaced}
end

