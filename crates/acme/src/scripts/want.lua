-- Adds names that get automatic HTTPS. Those that have it are not changed.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: zset, all names with score 0
-- ARGV[1]: string, the state of a new name
-- ARGV[2]: integer, 1 = the next step of all these names is due now, whatever it was
-- ARGV[3...]: strings, names
-- Returns the number of new names
-- Caller: store.rs, want
local due, names, index = KEYS[1], KEYS[2], KEYS[3]
local state, immediately = ARGV[1], ARGV[2] == '1'

local added = 0
for at = 3, #ARGV do
  local name = ARGV[at]
  local new = redis.call('HSETNX', names, name, state)
  added = added + new
  if new == 1 or immediately then
    redis.call('ZADD', due, 0, name)
    redis.call('ZADD', index, 0, name)
  end
end
return added
