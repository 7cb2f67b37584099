-- Says how a router is: what its workers have acknowledged, and that it lives.
-- The moment is this server's, because the machines' clocks differ.
-- KEYS[1]: hash, the router
-- KEYS[2]: zset, all routers by when they last reported
-- ARGV[1]: string, the router's node
-- ARGV[2]: integer, the serial that every worker has acknowledged
-- ARGV[3]: string, the newest epoch token, or ""
-- ARGV[4]: string, the workers as JSON
-- ARGV[5]: string, an alarm, or ""
-- ARGV[6]: string, where the router's admin listener is
-- ARGV[7]: string, the channel on which a changed serial is announced as "<node> <serial>"; when the alarm changed as
--          "<node> <serial> alarm"
-- ARGV[8]: integer, seconds after which a silent router is forgotten
-- ARGV[9]: string, requests under way by address as JSON, or ""
-- Returns integer, unix milliseconds of the report.
-- Caller: edge::store::report
local router, routers = KEYS[1], KEYS[2]
local node, serial = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before, alarm_before = unpack(redis.call('HMGET', router, 'serial', 'alarm'))
redis.call('HSET', router, 'serial', serial, 'epoch', ARGV[3], 'at_ms', string.format('%.0f', now_ms), 'workers', ARGV[4],
  'alarm', ARGV[5], 'address', ARGV[6], 'in_flight', ARGV[9])
redis.call('EXPIRE', router, ARGV[8])
redis.call('ZADD', routers, string.format('%.0f', now_ms), node)
-- A router that is gone for a week is not expected back under its name.
redis.call('ZREMRANGEBYSCORE', routers, '-inf', string.format('(%.0f', now_ms - 604800000))
-- One that was forgotten meanwhile may have had another.
if alarm_before ~= ARGV[5] then
  redis.call('PUBLISH', ARGV[7], node .. ' ' .. serial .. ' alarm')
elseif before ~= serial then
  redis.call('PUBLISH', ARGV[7], node .. ' ' .. serial)
end
return now_ms
