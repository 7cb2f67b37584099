-- Brings a host's policy to the route table, or takes it away: what was wanted of the edge is put beside what the
-- table knows of the instances, and the serial rises if routers can see a difference.
-- KEYS[1]: string, serial
-- KEYS[2]: hash, rules:<hostname>
-- KEYS[3]: string, the highest revision applied
-- KEYS[4]: string, lineage of the table
-- KEYS[5]: stream, what changed in the table
-- ARGV[1]: string, host name
-- ARGV[2]: integer, revision of the policy
-- ARGV[3]: string, its members as JSON without the braces around them; empty = it is taken away
-- ARGV[4]: integer, 1 when the edge must know since when instances are there else 0
-- ARGV[5]: integer, 1 when the edge must know their version types else 0
-- ARGV[6]: string, the newest epoch that the table must have; empty = any, while it is seeded
-- ARGV[7]: integer, the serial that the table must have reached
-- ARGV[8]: integer, unix ms; empty = this server's clock
-- Returns {'done', serial}
--   {'same', serial}: this revision stands already
--   {'stale', revision}: a later revision stands
--   {'foreign', lineage}: another table than expected
--   {'behind', serial}: the table has lost changes
--   {'blocked', key}: a key holds another type than it must
-- Caller: store/policies.rs, rule
local function main(shared)
  local serial_key, rules, highest, lineage_key, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local name, revision, members = ARGV[1], tonumber(ARGV[2]), ARGV[3]
  local slow_start, by_version = ARGV[4] == '1', ARGV[5] == '1'
  local epoch, floor, now = ARGV[6], tonumber(ARGV[7]), shared.now(tonumber(ARGV[8]))

  local refused, serial = shared.refused(lineage_key, serial_key, epoch, floor)
  refused = refused or shared.blocked({[changes] = 'stream', [highest] = 'string', [rules] = 'hash'}, {name})
  if refused then
    return refused
  end
  local stored = tonumber(redis.call('HGET', rules, 'revision') or '0')
  if stored > revision then
    return {'stale', stored}
  elseif stored == revision then
    return {'same', serial}
  end
  if members == '' then
    shared.unrule(name, revision)
  else
    redis.call('HSET', rules, 'revision', ARGV[2], 'members', members)
    redis.call('HDEL', rules, 'slow_start', 'by_version')
    if slow_start then
      redis.call('HSET', rules, 'slow_start', 1)
    end
    if by_version then
      redis.call('HSET', rules, 'by_version', 1)
    end
    redis.call('PERSIST', rules)
  end
  if revision > tonumber(redis.call('GET', highest) or '0') then
    redis.call('SET', highest, ARGV[2])
  end
  if shared.refresh(name) then
    -- A table that is being seeded tells nothing: its lineage does, in the end.
    if epoch ~= '' then
      shared.tell(changes, serial, now, 'host_altered', name)
    end
    serial = redis.call('INCR', serial_key)
  end
  return {'done', serial}
end

