-- Begins a change of definition: assigns its number, stores it, and records that the change is in progress until every
-- shard has it. A repeat with the same mark gets the first reply.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, machine -> a change of definition that is in progress
-- KEYS[3]: zset, names of machines
-- KEYS[4]: set, digests of definitions that were applied
-- KEYS[5]: hash, version -> JSON of the definition without its text
-- KEYS[6]: hash, machine that was deleted -> the number of its last version
-- KEYS[7]: hash, `full` -> who gets no more memory because it is short (see publish_quota.lua)
-- KEYS[8]: hash, owner -> bytes that are stored for it
-- KEYS[9]: hash, client -> the bytes of its definitions of the machine
-- KEYS[10]: hash, version -> text of the definition
-- ARGV[1]: string, machine
-- ARGV[2]: integer, the version that must be active now; 0 for none
-- ARGV[3]: string, a mark of this attempt, no space in it
-- ARGV[4]: string, the definition's JSON without its text
-- ARGV[5]: string, digest of the definition
-- ARGV[6]: string, JSON of the map of removed states
-- ARGV[7]: string, the client that applies it
-- ARGV[8]: string, the text of the definition
-- Returns {'started', version}
--   {'changed', the active version}
--   {'busy', the change that is in progress}
--   {'full'} if memory is short, and the client uses most of it
-- Caller: Versions::start_apply
local current, applying, names, seen, versions, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local state, owners, by_client, sources = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local machine, base, mark, record, digest, map = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local client, source = ARGV[7], ARGV[8]

-- Whether memory is short and an owner uses most of it. The note has each such owner behind the length of its name.
local function is_refused(owner)
  local till, refused = string.match(redis.call('HGET', state, 'full') or '', '^(%d+) (.*)$')
  if not till or tonumber(till) <= tonumber(redis.call('TIME')[1]) * 1000 then return false end
  local at = 1
  while true do
    local from, to, length = string.find(refused, '^(%d+):', at)
    if not from then return false end
    at = to + length + 1
    if string.sub(refused, to + 1, at - 1) == owner then return true end
  end
end

local under_way = redis.call('HGET', applying, machine)
if under_way then
  local version, theirs = string.match(under_way, '^(%d+) (%S+) ')
  if theirs == mark then return {'started', tonumber(version)} end
  return {'busy', under_way}
end
local active = tonumber(redis.call('GET', current) or '0')
if active ~= base then return {'changed', active} end
if is_refused('client:' .. client) then return {'full'} end
-- These fail before the first write if a key has another type.
redis.call('HEXISTS', owners, client)
redis.call('HEXISTS', by_client, client)
redis.call('HEXISTS', sources, 0)
-- Other processes may have cached versions of a deleted machine with this name, so their numbers are not used again.
local last = base > 0 and base or tonumber(redis.call('HGET', retired, machine) or '0')
local version = last + 1
local number = string.format('%.0f', version)
redis.call('HSET', applying, machine, number .. ' ' .. mark .. ' ' .. map)
redis.call('HSET', versions, number, record)
redis.call('HSET', sources, number, source)
redis.call('HINCRBY', by_client, client, #record + #source)
redis.call('HINCRBY', owners, 'client:' .. client, #record + #source)
redis.call('ZADD', names, 0, machine)
redis.call('SADD', seen, digest)
return {'started', version}
