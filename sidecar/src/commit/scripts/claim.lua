-- Makes a sidecar the owner of a node's position, and returns the place to continue from.
-- The process that started last takes over. A replaced process never takes over again; commit.lua reports the replacement
-- to it. A repeated claim of the same process succeeds only if no newer process claimed: so a sidecar renews an ownership
-- that a restarted Redis lost, but a replaced one does not. Claims are numbered by the clock, so a later start has the
-- higher number even if Redis lost the earlier one.
-- KEYS[1]: string, bytes counted of the current file
-- KEYS[2]: hash, the identity of that file, and the process that may move the position
-- ARGV[1]: string, the process that claims
-- ARGV[2]: integer, the number of its claim, 0 at the start
-- Returns {"owned" or "fenced", owner, claim, position, generation, device, inode, fingerprint, finished, lines,
--   bad_lines, gaps, gap_bytes, window, parts_done}; values never written are "".
-- Caller: commit::RedisStore::claim
local position, file = KEYS[1], KEYS[2]
local me, mine = ARGV[1], tonumber(ARGV[2])

local owner = redis.call('HGET', file, 'owner')
local stored = tonumber(redis.call('HGET', file, 'claim') or '0')
local verdict = 'owned'
if mine == 0 then
  local time = redis.call('TIME')
  stored = math.max(stored + 1, time[1] * 1000 + math.floor(time[2] / 1000))
  owner = me
  redis.call('HSET', file, 'owner', owner, 'claim', string.format('%.0f', stored))
elseif stored < mine then
  stored = mine
  owner = me
  redis.call('HSET', file, 'owner', owner, 'claim', string.format('%.0f', stored))
elseif owner ~= me then
  verdict = 'fenced'
end

local reply = { verdict, owner or '', string.format('%.0f', stored), redis.call('GET', position) or '' }
local fields = {
  'generation', 'device', 'inode', 'fingerprint', 'finished', 'lines', 'bad_lines', 'gaps', 'gap_bytes',
  'window', 'parts_done',
}
for _, field in ipairs(fields) do
  reply[#reply + 1] = redis.call('HGET', file, field) or ''
end
return reply
