-- Gives messages back: immediately to the heads of their slices, or after a delay. A message that is rejected, or that
-- has reached its maximum number of attempts, becomes a dead letter.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms to wait; `backoff` for what the queue defines; `reject` to make dead letters; `exhausted` to make dead
--   letters of those that have reached their maximum number of attempts, and nothing of the others
-- ARGV[3]: integer, maximum number of dead letters
-- ARGV[4...]: strings, for each receipt its id and its proof (nonce and attempt)
-- Returns an array with 1 (returned), 2 (delayed), 3 (a dead letter) or 0 (not held, or no longer, or nothing was done) for each
-- receipt.
-- Caller: Store::nack

local function main(slices)
  local call = redis.call
  local queue = slices.configured(KEYS[2], KEYS[3], KEYS[1])
  local reply = {}
  for i = 1, (#ARGV - 3) / 2 do reply[i] = 0 end
  if not queue then return reply end
  slices.expect('list', queue.dead)
  slices.expect('zset', queue.delayed)
  local now, keep, reject = slices.now(ARGV[1]), tonumber(ARGV[3]), ARGV[2] == 'reject'
  local landed, back, dead, later, dues = {}, {}, {}, {}, {}
  for i, message in ipairs(slices.held_by(queue, lists.copy(ARGV, 4))) do
    local dies = message and (reject or queue.max_attempts > 0 and message.attempts >= queue.max_attempts)
    if message and (dies or ARGV[2] ~= 'exhausted') then
      landed[#landed + 1] = message
      local delay = tonumber(ARGV[2]) or slices.backoff(queue, message.attempts)
      if dies then
        message.body = call('HGET', KEYS[4] .. ':' .. message.segment, message.id)
        dead[#dead + 1] = message
        reply[i] = 3
      elseif delay > 0 then
        later[#later + 1], dues[#dues + 1] = message, now + delay
        reply[i] = 2
      else
        back[#back + 1] = message
        reply[i] = 1
      end
      slices.load(queue, message.tenant)
    end
  end

  slices.land(queue, landed)
  slices.give_back(queue, back)
  slices.delay(queue, later, dues)
  slices.add(queue, 'nacked', #landed)
  if #dead > 0 then slices.bury(queue, dead, reject and 'rejected' or 'nacked', now, keep) end
  slices.settle_all(queue)
  slices.finish(queue)
  return reply
end
