-- Records a heartbeat of a pacemaker, and removes those whose heartbeats stopped. There are few pacemakers, so reading
-- the whole list is cheap.
-- KEYS[1]: hash, pacemaker → unix ms of this server's clock and version, with a space between
-- ARGV[1]: string, the pacemaker
-- ARGV[2]: string, its version
-- ARGV[3]: integer, ms without a heartbeat after which one is removed
-- Returns the number of running pacemakers.
-- Caller: presence/store.rs, beat
local list = KEYS[1]
local who, version, known_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', list, who, string.format('%.0f', now) .. ' ' .. version)
local all = redis.call('HGETALL', list)
local serving = 0
for i = 1, #all, 2 do
  local at = tonumber(string.match(all[i + 1], '^%d+'))
  if not at or now - at > known_ms then
    redis.call('HDEL', list, all[i])
  else
    serving = serving + 1
  end
end
return serving
