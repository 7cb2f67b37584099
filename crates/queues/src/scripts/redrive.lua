-- Returns dead letters to their facets, the oldest first, as if they had never been delivered. Their bodies are
-- stored again in the current segment of the log, because the first ones may be gone.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the log: segment -> bytes; the segments' own keys are built from it
-- KEYS[5]: hash, the registry of this shard
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: string, the registry's stamp that the weights below were taken from
-- ARGV[3]: integer, maximum number of dead letters
-- ARGV[4...]: strings, environments and their weights; others have 1
-- Returns how many were returned; -1 when the registry has another stamp.
-- Caller: Store::redrive

local function main(facets)
  local call = redis.call
  if call('HGET', KEYS[5], 'stamp') ~= ARGV[2] then return -1 end
  local queue = facets.configured(KEYS[2], KEYS[3], KEYS[1])
  if not queue then return 0 end
  local weights = {}
  for at = 4, #ARGV, 2 do weights[ARGV[at]] = tonumber(ARGV[at + 1]) end
  local segment = facets.segment(facets.now(ARGV[1]))
  local log = KEYS[4] .. ':' .. segment
  facets.expect('hash', KEYS[4], log)
  local letters = call('LRANGE', queue.dead, 0, tonumber(ARGV[3]) - 1)
  for i = 1, #letters do
    local letter = cmsgpack.unpack(letters[i])
    letters[i] = letter
    facets.load(queue, letter[4])
  end

  if #letters > 0 then call('LPOP', queue.dead, #letters) end
  for i = 1, #letters do
    local env, id, body = letters[i][4], letters[i][5], letters[i][6]
    call('HSET', log, id, body)
    call('HINCRBY', KEYS[4], segment, #body)
    facets.hold(queue, segment, 1)
    facets.push(queue, queue.facets[env], { id .. '@' .. segment }, weights[env] or 1)
  end
  facets.add(queue, 'redriven', #letters)
  facets.finish(queue)
  return #letters
end
