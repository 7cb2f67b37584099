-- Changes the end of leases.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms from now
-- ARGV[3...]: strings, for each receipt its id and its proof (nonce and attempt)
-- Returns the new end, then an array with 1 for each receipt that was held and 0 for each that was not, or no longer.
-- Caller: Store::extend

local function main(slices)
  local call, text = redis.call, slices.text
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  local reply = {}
  for i = 1, (#ARGV - 2) / 2 do reply[i] = 0 end
  if not queue then return { '0', reply } end
  local until_ms = slices.now(ARGV[1]) + tonumber(ARGV[2])
  local extended = false
  for i, message in ipairs(slices.held_by(queue, lists.copy(ARGV, 3))) do
    if message then
      -- Redis accepts ZREM at its memory limit, and then everything after it.
      call('ZREM', queue.leases, message.id)
      call('ZADD', queue.leases, text(until_ms), message.id)
      reply[i] = 1
      extended = true
    end
  end
  -- A later end is not recorded: a sweep that comes too early finds nothing, and records the right time.
  if extended then slices.schedule(queue, until_ms) end
  slices.finish(queue)
  return { text(until_ms), reply }
end
