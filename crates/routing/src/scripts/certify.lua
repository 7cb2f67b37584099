-- Brings a server name's certificate to the route table, or takes it away, and raises the serial if routers can see a
-- difference.
-- KEYS[1]: string, serial
-- KEYS[2]: string, cert:<server name>
-- KEYS[3]: hash, certificate:<server name>
-- KEYS[4]: string, the highest revision applied
-- KEYS[5]: string, lineage of the table
-- KEYS[6]: stream, what changed in the table
-- ARGV[1]: string, server name
-- ARGV[2]: integer, revision of the certificate
-- ARGV[3]: string, the certificate as JSON; empty = it is taken away
-- ARGV[4]: integer, when it ends, unix seconds
-- ARGV[5]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[6]: integer, the serial that the table must have reached
-- ARGV[7]: integer, unix ms; empty = this server's clock
-- Returns {'done', serial}
--   {'same', serial}: this revision stands already
--   {'stale', revision}: a later revision stands
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
-- Caller: store/certificates.rs, certify
local function main(shared)
  local serial_key, shown, about, highest = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local lineage_key, changes = KEYS[5], KEYS[6]
  local name, revision, certificate, ends_at = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
  local epoch, floor, now = ARGV[5], tonumber(ARGV[6]), shared.now(tonumber(ARGV[7]))
  local TOMBSTONE_SECONDS = 3600

  local refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  refused = refused or shared.blocked({[changes] = 'stream', [highest] = 'string', [about] = 'hash', [shown] = 'string'},
    {})
  if refused then
    return refused
  end
  local stored = tonumber(redis.call('HGET', about, 'revision') or '0')
  if stored > revision then
    return {'stale', stored}
  elseif stored == revision then
    return {'same', serial}
  end
  local difference
  if certificate == '' then
    difference = redis.call('DEL', shown) == 1
    -- A tombstone outlives every projection that may still be on its way.
    redis.call('DEL', about)
    redis.call('HSET', about, 'revision', ARGV[2])
    redis.call('EXPIRE', about, TOMBSTONE_SECONDS)
  else
    difference = redis.call('GET', shown) ~= certificate
    redis.call('SET', shown, certificate)
    redis.call('HSET', about, 'revision', ARGV[2], 'ends', ends_at)
    redis.call('PERSIST', about)
  end
  if revision > tonumber(redis.call('GET', highest) or '0') then
    redis.call('SET', highest, ARGV[2])
  end
  if difference then
    -- A table that is being seeded tells nothing: its lineage does, in the end.
    if epoch ~= '' then
      local kind = certificate == '' and 'certificate_removed' or 'certificate_put'
      shared.tell(changes, serial, now, kind, name, 'ends', ends_at)
    end
    serial = redis.call('INCR', serial_key)
  end
  return {'done', serial}
end

