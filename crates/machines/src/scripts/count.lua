-- Adds to the counters of an hour.
-- KEYS[1]: hash, counter -> value
-- ARGV[1]: integer, ms after which the hash expires
-- ARGV[2]: integer, maximum number of fields
-- ARGV[3...]: strings and integers in turn, counters and increments
-- Returns how many counters were not added because the maximum was reached.
-- Caller: FlowCounts::add
local counts, ttl, most = KEYS[1], ARGV[1], tonumber(ARGV[2])

local left_out = 0
local room = most - redis.call('HLEN', counts)
for at = 3, #ARGV, 2 do
  local known = redis.call('HEXISTS', counts, ARGV[at]) == 1
  if known or room > 0 then
    redis.call('HINCRBY', counts, ARGV[at], ARGV[at + 1])
    if not known then room = room - 1 end
  else
    left_out = left_out + 1
  end
end
redis.call('PEXPIRE', counts, ttl)
return left_out
