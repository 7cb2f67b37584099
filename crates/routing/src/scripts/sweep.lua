-- Returns the leases and drains that have ended, and detects if no sweep happened for so long that heartbeats were
-- lost.
-- KEYS[1]: hash, state of the sweeper: fencing epoch, time of the latest sweep, time of the latest return
-- KEYS[2]: zset, instance id by end of lease in unix ms
-- KEYS[3]: zset, instance id by end of drain in unix ms
-- ARGV[1]: integer, fencing epoch of the lease; 0 = a pacemaker without the lease, which only shows that it runs
-- ARGV[2]: integer, silence in ms that is treated as absence
-- ARGV[3]: integer, maximum number of ids
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- Returns {'due', 1 after an absence else 0, id, …}
--   {'fenced', epoch}: another pacemaker took the lease over
-- Caller: store/table.rs, sweep
local fencing, leases, drains = KEYS[1], KEYS[2], KEYS[3]
local epoch, gap_ms, limit, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local stored = tonumber(redis.call('HGET', fencing, 'sweeper.epoch') or '0')
if epoch > 0 and epoch < stored then
  return {'fenced', stored}
end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Any running pacemaker could have received heartbeats, whether it sweeps or not.
local swept = tonumber(redis.call('HGET', fencing, 'sweeper.swept_ms') or '-inf')
local absent = now - swept > gap_ms
local text = string.format('%.0f', now)
if absent then
  redis.call('HSET', fencing, 'sweeper.resumed_ms', text)
end
redis.call('HSET', fencing, 'sweeper.swept_ms', text)
-- Replicas get no write if nothing changes.
if epoch > stored then
  redis.call('HSET', fencing, 'sweeper.epoch', ARGV[1])
end

local due = {'due', absent and 1 or 0}
for _, deadlines in ipairs({leases, drains}) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, limit)) do
    due[#due + 1] = id
  end
end
return due
