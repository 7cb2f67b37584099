-- Extends the leases of workers that are alive.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3...]: objects, each followed by its worker/epoch
-- Returns how many of them are still held.
-- Caller: Store::beat

local function main(objects)
  local ends = objects.text(objects.now(ARGV[1]) + tonumber(ARGV[2]))
  local held = 0
  for at = 3, #ARGV, 2 do
    if objects.holds(ARGV[at], ARGV[at + 1]) then
      redis.call('ZADD', objects.key('leases'), ends, ARGV[at])
      held = held + 1
    end
  end
  return held
end
