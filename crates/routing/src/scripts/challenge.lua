-- Puts the answer to a challenge of an ACME server into the route table, and raises the serial, so that routers acknowledge
-- it like any change. Completed by shared.lua.
-- KEYS[1]: string, serial
-- KEYS[2]: string, lineage of the table
-- KEYS[3]: stream, the changes of the table
-- KEYS[4]: string, the answer: challenge:<token>
-- ARGV[1]: string, the answer
-- ARGV[2]: integer, seconds until it expires
-- ARGV[3]: string, the newest epoch that the table must have
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- ARGV[5]: string, the server name that the challenge is about
-- Returns {'done', serial}
--   {'foreign', lineage}: another table than expected
--   {'blocked', key}: a key has an unexpected type
-- Caller: store/challenges.rs, put_challenge

local function main(shared)
  local serial_key, lineage_key, changes, challenge = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local answer, seconds, epoch, now, name = ARGV[1], ARGV[2], ARGV[3], shared.now(tonumber(ARGV[4])), ARGV[5]

  local refused, serial = shared.refused(lineage_key, serial_key, epoch, 0)
  refused = refused or shared.blocked({[changes] = 'stream', [challenge] = 'string'}, {})
  if refused then
    return refused
  end
  local same = redis.call('GET', challenge) == answer
  redis.call('SET', challenge, answer, 'EX', seconds)
  if same then
    return {'done', serial}
  end
  shared.log_change(changes, serial, now, 'challenge_put', name)
  return {'done', redis.call('INCR', serial_key)}
end

