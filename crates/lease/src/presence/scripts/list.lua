-- Lists the pacemakers with a recent heartbeat.
-- KEYS[1]: hash, pacemaker → unix ms of this server's clock and version, with a space between
-- ARGV[1]: integer, ms without a heartbeat after which one is not listed
-- Returns {{pacemaker, version, ms since its heartbeat}, …}
-- Caller: presence/store.rs, all
local list = KEYS[1]
local known_ms = tonumber(ARGV[1])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', list)
local serving = {}
for i = 1, #all, 2 do
  local at, version = string.match(all[i + 1], '^(%d+) (.*)$')
  at = tonumber(at)
  if at and now - at <= known_ms then
    -- The age is 0 if the clock was set back.
    serving[#serving + 1] = {all[i], version, math.max(now - at, 0)}
  end
end
return serving
