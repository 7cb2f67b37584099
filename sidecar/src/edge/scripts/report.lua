-- Reports the state of a router: the serial that its workers have acknowledged, and that it is alive.
-- The time is this server's, because the machines' clocks differ.
-- KEYS[1]: hash, the router
-- KEYS[2]: zset, all routers by the time of their last report
-- ARGV[1]: string, the router's node
-- ARGV[2]: integer, the serial that every worker has acknowledged
-- ARGV[3]: string, the newest epoch token, or ""
-- ARGV[4]: string, the workers as JSON
-- ARGV[5]: string, an alarm, or ""
-- ARGV[6]: string, address of the router's admin listener
-- ARGV[7]: string, the channel on which a changed serial is published as "<node> <serial>", and a changed alarm as
--          "<node> <serial> alarm"
-- ARGV[8]: integer, seconds after which a silent router is removed
-- ARGV[9]: string, requests in flight by address as JSON, or ""
-- ARGV[10]: string, server names without a certificate that clients asked for, as JSON, or ""
-- ARGV[11]: string, ends of ejections by address as JSON, or ""
-- Returns integer, unix milliseconds of the report.
-- Caller: edge::store::report
local router, routers = KEYS[1], KEYS[2]
local node, serial = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before, alarm_before = unpack(redis.call('HMGET', router, 'serial', 'alarm'))
redis.call('HSET', router, 'serial', serial, 'epoch', ARGV[3], 'at_ms', string.format('%.0f', now_ms), 'workers', ARGV[4],
  'alarm', ARGV[5], 'address', ARGV[6], 'in_flight', ARGV[9],
  'requested_names', ARGV[10], 'ejected', ARGV[11])
redis.call('EXPIRE', router, ARGV[8])
redis.call('ZADD', routers, string.format('%.0f', now_ms), node)
-- A router that was silent for a week is not expected to return under its name.
redis.call('ZREMRANGEBYSCORE', routers, '-inf', string.format('(%.0f', now_ms - 604800000))
-- If the router was removed in the meantime, its last published alarm may be different.
if alarm_before ~= ARGV[5] then
  redis.call('PUBLISH', ARGV[7], node .. ' ' .. serial .. ' alarm')
elseif before ~= serial then
  redis.call('PUBLISH', ARGV[7], node .. ' ' .. serial)
end
return now_ms
