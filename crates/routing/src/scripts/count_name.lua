-- Counts a name for which a token sets the policy or the certificate, if it is new. It is counted together with the names that
-- the token's instances register (desire.lua).
-- KEYS[1]: hash, host name → version type last registered for it
-- KEYS[2]: hash, host name → its policy
-- KEYS[3]: hash, server name → its certificate
-- KEYS[4]: hash, the state last given to the routes primary: epoch, serial
-- KEYS[5]: set, `h:` and each new host name, `v:` and each new version type that the token registered within a day
-- ARGV[1]: string, the name
-- ARGV[2]: integer, the maximum number of these names
-- Returns {'known'}: the name is not new, or is counted already
--   {'counted'}
--   {'names', seconds}: the token has registered the maximum number of new names, and may register more after this time
--   {'uninitialized'}: this server is empty, so it does not know which names are new
-- Caller: store/desired.rs, count_name
local hosts, policies, certificates, route_table, names = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local name, max_names = ARGV[1], tonumber(ARGV[2])
-- How long new names are counted, in seconds, as in desire.lua.
local NAMES_SECONDS = 86400

if redis.call('HEXISTS', route_table, 'epoch') == 0 then
  return {'uninitialized'}
end
for _, known in ipairs({hosts, policies, certificates}) do
  if redis.call('HEXISTS', known, name) == 1 then
    return {'known'}
  end
end
if redis.call('SISMEMBER', names, 'h:' .. name) == 1 then
  return {'known'}
end
if redis.call('SCARD', names) >= max_names then
  return {'names', redis.call('TTL', names)}
end
redis.call('SADD', names, 'h:' .. name)
if redis.call('TTL', names) < 0 then
  redis.call('EXPIRE', names, NAMES_SECONDS)
end
return {'counted'}
