-- Removes messages that were acknowledged.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1...]: strings, for each receipt its id and nonce
-- Returns an array with 1 for each receipt that was held and 0 for each that was not, or no longer; all 0 when the
-- queue was deleted.
-- Caller: Store::ack

local function main(facets)
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  local reply = {}
  for i = 1, #ARGV / 2 do reply[i] = 0 end
  if not queue then return reply end
  local landed = {}
  for i, message in ipairs(facets.held_by(queue, ARGV)) do
    if message then
      landed[#landed + 1] = message
      reply[i] = 1
    end
  end
  for _, message in ipairs(landed) do facets.load(queue, message.env) end

  facets.land(queue, landed)
  for _, message in ipairs(landed) do facets.hold(queue, message.segment, -1) end
  facets.add(queue, 'acked', #landed)
  facets.settle_all(queue)
  facets.finish(queue)
  return reply
end
