-- Changes the certificate that is wanted for a server name, or takes it away.
-- KEYS[1]: hash, server name → its certificate with its revision and end as JSON
-- KEYS[2]: zset, index of server names, all of score 0
-- KEYS[3]: zset, server name by the end of its certificate in unix seconds
-- KEYS[4]: hash, server name → what was told of its certificate's end
-- KEYS[5]: string, revision of the latest change
-- KEYS[6]: zset, changed and not known to stand in the table, by revision
-- KEYS[7]: hash, what the routes master was last given: epoch, serial
-- ARGV[1]: string, server name
-- ARGV[2]: string, the certificate as JSON, its private key encrypted; empty = take it away
-- ARGV[3]: integer, when it ends, unix seconds
-- ARGV[4]: integer, the highest revision that the caller has ever seen
-- ARGV[5]: string, revision of the certificate that the caller read; empty = whatever it is, 0 = none is wanted, and
--   what may stand in the table all the same is to be taken away
-- Returns {'accepted', revision, serial of the table, lineage of the table}
--   {'same', revision that is not known to stand or 0, serial, lineage}: it is wanted like that already
--   {'changed'}: the certificate is another by now; read again
--   {'regressed', revision}: this server has lost changes; reconcile first
--   {'uninitialised'}: this server is empty; reconcile first
-- Caller: store/certificates.rs, desire_certificate
local certificates, index, ends, told = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local revisions, unprojected, route_table = KEYS[5], KEYS[6], KEYS[7]
local name, certificate, ends_at = ARGV[1], ARGV[2], ARGV[3]
local floor, expected = tonumber(ARGV[4]), ARGV[5]

local lineage, serial = unpack(redis.call('HMGET', route_table, 'epoch', 'serial'))
if not lineage then
  return {'uninitialised'}
end
serial = tonumber(serial or '0')
local latest = tonumber(redis.call('GET', revisions) or '0')
if latest < floor then
  return {'regressed', latest}
end
local stored = redis.call('HGET', certificates, name) or ''
local stored_revision = string.match(stored, '^{"revision":(%d+),') or ''
if expected ~= '' and (stored_revision == '' and '0' or stored_revision) ~= expected then
  return {'changed'}
end
-- = begins no instance id.
local member = '=' .. name
local tail = certificate ~= '' and ',"ends":' .. ends_at .. ',"certificate":' .. certificate .. '}' or ''
if expected ~= '0' and string.sub(stored, #'{"revision":' + #stored_revision + 1) == tail then
  return {'same', tonumber(redis.call('ZSCORE', unprojected, member) or '0'), serial, lineage}
end
local revision = string.format('%.0f', redis.call('INCR', revisions))
if certificate == '' then
  redis.call('HDEL', certificates, name)
  redis.call('HDEL', told, name)
  redis.call('ZREM', index, name)
  redis.call('ZREM', ends, name)
else
  redis.call('HSET', certificates, name, '{"revision":' .. revision .. tail)
  redis.call('ZADD', index, 0, name)
  redis.call('ZADD', ends, ends_at, name)
end
redis.call('ZADD', unprojected, revision, member)
return {'accepted', tonumber(revision), serial, lineage}
