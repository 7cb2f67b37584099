-- Makes a queue's definition take effect: writes its settings, then brings facets into the ring or out of it, part by
-- part from the first on.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- ARGV[1]: integer, revision of the definition
-- ARGV[2]: integer, ms of a lease
-- ARGV[3]: integer, messages of a facet in flight, 0 for any number
-- ARGV[4]: integer, attempts, 0 for any number
-- ARGV[5]: string, the environment after which this part begins; empty for the first part
-- ARGV[6]: integer, facets in a part
-- ARGV[7...]: environments and their weights; others have 1
-- Returns the environment after which the next part begins; empty when there is none, or the settings are newer.
-- Caller: Store::configure

local function main(facets)
  local call = redis.call
  local queue = facets.open(KEYS[2], KEYS[3], KEYS[1], tonumber(ARGV[3]))
  local revision = call('HGET', queue.settings, 'revision')
  if revision and tonumber(revision) > tonumber(ARGV[1]) then return '' end
  facets.expect('zset', queue.ring, queue.index)
  local weights = {}
  for at = 7, #ARGV, 2 do weights[ARGV[at]] = tonumber(ARGV[at + 1]) end
  local first = ARGV[5] == '' and '-' or '(' .. ARGV[5]
  -- Whoever has its turn may have used it up by the new weight, and then ends it before anybody else comes in.
  local head = call('ZRANGE', queue.ring, 0, 0)[1]
  if head then facets.load(queue, head) end
  local envs = call('ZRANGE', queue.index, first, '+', 'BYLEX', 'LIMIT', 0, tonumber(ARGV[6]))
  for _, env in ipairs(envs) do facets.load(queue, env) end

  call('HSET', queue.settings, 'revision', ARGV[1], 'lease_ms', ARGV[2], 'in_flight_limit', ARGV[3],
    'max_attempts', ARGV[4])
  for _, facet in ipairs(queue.touched) do
    facet.weight = weights[facet.env] or 1
    if facet.used > 0 and facet.used >= facet.weight then call('ZREM', queue.ring, facet.env) end
  end
  facets.settle_all(queue)
  facets.finish(queue)
  return #envs == tonumber(ARGV[6]) and envs[#envs] or ''
end
