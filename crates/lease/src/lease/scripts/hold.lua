-- Acquires or renews a lease. Each takeover raises the fencing epoch, which every script of its holder carries.
-- KEYS[1]: hash, holder, until_ms, epoch
-- ARGV[1]: string, the holder that asks
-- ARGV[2]: integer, duration in ms
-- ARGV[3]: integer, the epoch must become greater than this; 0 = any
-- ARGV[4]: integer, unix ms; empty = this server's clock
-- Returns {'held', epoch}
--   {'taken', holder, ms until it ends}
-- Caller: lease/store.rs, hold
local lease = KEYS[1]
local who, ttl_ms, floor, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local holder, until_ms, epoch = unpack(redis.call('HMGET', lease, 'holder', 'until_ms', 'epoch'))
until_ms, epoch = tonumber(until_ms or '0'), tonumber(epoch or '0')
if until_ms > now and holder ~= who then
  return {'taken', holder, until_ms - now}
end
-- An expired lease gets a new epoch even if no other process held it in between, because its holder may not have
-- noticed.
if until_ms <= now or epoch <= floor then
  epoch = math.max(epoch, floor) + 1
end
redis.call('HSET', lease, 'holder', who, 'until_ms', string.format('%.0f', now + ttl_ms),
  'epoch', string.format('%.0f', epoch))
return {'held', epoch}
