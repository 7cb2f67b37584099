-- Reads the reports of all routers that reported recently, by one clock, in a single call.
-- ARGV[1]: string, the zset of routers by time of report. No key is declared, because a pacemaker may only read them.
-- ARGV[2]: string, the prefix of the names of their reports
-- ARGV[3]: integer, maximum age of a report in ms
-- Returns {unix ms, {node, unix ms of its report, {field, value, …}}, …}
-- Caller: store/routers.rs, routers
local routers, prefix, within = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {string.format('%.0f', now)}
local seen = redis.call('ZRANGEBYSCORE', routers, string.format('%.0f', now - within), '+inf', 'WITHSCORES')
for i = 1, #seen, 2 do
  found[#found + 1] = {seen[i], seen[i + 1], redis.call('HGETALL', prefix .. seen[i])}
end
return found
