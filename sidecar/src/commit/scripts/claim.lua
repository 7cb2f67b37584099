-- Makes a sidecar the owner of a node's position, and tells it where to go on.
-- The newest starter takes over; one that was taken over never takes back (it learns of it from commit.lua). A claim
-- that is repeated by the same process only succeeds when nobody newer came: so a sidecar whose ownership went back
-- in time with a restarted Redis renews it, and one that was replaced does not. Claims are numbered by the clock, so
-- that a later start has the higher number even when Redis has forgotten the earlier one.
-- KEYS[1]: string, bytes counted of the current file
-- KEYS[2]: hash, which file that is, and who may move it
-- ARGV[1]: string, the process that claims
-- ARGV[2]: integer, the number of its claim, 0 at its start
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
