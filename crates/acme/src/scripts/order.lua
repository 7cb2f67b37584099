-- Takes one order of the present hour, if the share of its owner is not spent. The hour begins with its first order. An owner may
-- use two thirds of what the others leave, so any number of names of one owner leaves orders for others. A quarter is only for
-- renewals: clients have no working certificate for a new name yet, and would lose the one of another.
-- KEYS[1]: hash, `total` → orders of the present hour; `=` and an owner → its orders; `~` and an owner → how often its names
--   had to wait
-- ARGV[1]: integer, orders per hour
-- ARGV[2]: string, the owner
-- ARGV[3]: integer, 1 if the owner may use all of it, else 0
-- ARGV[4]: integer, 1 for a renewal, else 0
-- Returns {0}
--   {the ms until the next hour, how often names of the owner had to wait in this hour}: its share is spent
-- Caller: store.rs, order
local orders = KEYS[1]
local limit, owner, is_whole, is_renewal = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1', ARGV[4] == '1'

local total = tonumber(redis.call('HGET', orders, 'total') or '0')
local own = tonumber(redis.call('HGET', orders, '=' .. owner) or '0')
local left = limit - (total - own)
if not is_renewal then
  left = left - math.floor(limit / 4)
end
local share = is_whole and left or math.ceil(left * 2 / 3)
if own < share and total < limit then
  redis.call('HINCRBY', orders, 'total', 1)
  redis.call('HINCRBY', orders, '=' .. owner, 1)
  if total == 0 then
    redis.call('EXPIRE', orders, 3600)
  end
  return {0}
end
-- There are orders in this hour, so the key has its time to live.
local waits = redis.call('HINCRBY', orders, '~' .. owner, 1)
return {math.max(redis.call('PTTL', orders), 1), waits}
