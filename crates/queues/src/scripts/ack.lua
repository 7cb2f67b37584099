-- Removes messages that were acknowledged.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, `id nonce attempt` of receipts that were acknowledged recently
-- KEYS[5]: hash, the same, of earlier ones
-- ARGV[1...]: strings, for each receipt its id and its proof (nonce and attempt)
-- Returns an array with 1 for each receipt that was held, 2 for each that was acknowledged before, and 0 for each that
-- was not held, or no longer; all 0 when the queue was deleted.
-- Caller: Store::ack

-- Maximum number of receipts in each of the two hashes, and how long a hash is kept after its newest receipt, in ms. A
-- client that lost a reply repeats its call within seconds.
local MAX_REMEMBERED = 50000
local REMEMBERED_MS = '600000'

-- Stores receipts, so that a repeated call is recognized.
local function remember(fields)
  lists.call('HSET', KEYS[4], fields)
  redis.call('PEXPIRE', KEYS[4], REMEMBERED_MS)
  if redis.call('HLEN', KEYS[4]) > MAX_REMEMBERED then
    redis.call('UNLINK', KEYS[5])
    redis.call('RENAME', KEYS[4], KEYS[5])
  end
end

local function was_acked(field)
  return redis.call('HEXISTS', KEYS[4], field) == 1 or redis.call('HEXISTS', KEYS[5], field) == 1
end

local function main(slices)
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  local reply = {}
  for i = 1, #ARGV / 2 do reply[i] = 0 end
  if not queue then return reply end
  slices.expect('hash', KEYS[4], KEYS[5])
  local landed, fields = {}, {}
  for i, message in ipairs(slices.held_by(queue, ARGV)) do
    local field = ARGV[2 * i - 1] .. ' ' .. ARGV[2 * i]
    if message then
      landed[#landed + 1] = message
      fields[#fields + 1], fields[#fields + 2] = field, ''
      reply[i] = 1
    elseif was_acked(field) then
      reply[i] = 2
    end
  end
  for _, message in ipairs(landed) do slices.load(queue, message.tenant) end

  slices.land(queue, landed)
  for _, message in ipairs(landed) do slices.hold(queue, message.segment, -1) end
  slices.add(queue, 'acked', #landed)
  if #fields > 0 then remember(fields) end
  slices.settle_all(queue)
  slices.finish(queue)
  return reply
end
