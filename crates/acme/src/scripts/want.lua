-- Adds names that get automatic HTTPS. Those that have it are not changed. Or makes the next step of names due that have it.
-- KEYS[1]: zset, names by the time of their next step in unix ms
-- KEYS[2]: hash, name → state as JSON
-- KEYS[3]: zset, all names with score 0
-- ARGV[1]: string, the state of a new name; empty = no name is added, and the next step of those that exist is due now
-- ARGV[2...]: strings, names
-- Returns the number of new names, or of those whose step is due now
-- Caller: store.rs, want
local due, names, index = KEYS[1], KEYS[2], KEYS[3]
local state = ARGV[1]

local due_now = 0
for at = 2, #ARGV do
  local name = ARGV[at]
  local found = state == '' and redis.call('HEXISTS', names, name) or redis.call('HSETNX', names, name, state)
  due_now = due_now + found
  if found == 1 then
    redis.call('ZADD', due, 0, name)
    redis.call('ZADD', index, 0, name)
  end
end
return due_now
