-- Makes a queue's definition take effect: writes its settings, then gives facets their weights and rules, and puts them
-- into the ring or removes them from it, part by part.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the registry of this shard
-- ARGV[1]: string, the registry's stamp that the definition was taken from
-- ARGV[2]: integer, revision of the definition
-- ARGV[3]: integer, ms of a lease
-- ARGV[4]: integer, maximum number of messages of a facet in flight, 0 for no limit
-- ARGV[5]: integer, maximum number of attempts, 0 for no limit
-- ARGV[6]: integer, ms that a message may wait
-- ARGV[7]: integer, ms before the second delivery of a message, 0 for none
-- ARGV[8]: integer, maximum ms before a later delivery
-- ARGV[9]: string, the environment after which this part begins; empty for the first part
-- ARGV[10]: integer, facets in a part
-- ARGV[11...]: strings, environments, their weights and their rules; others have 1 and no rules
-- Returns an array: 1 when the registry has another stamp (the queue may have been deleted; nothing was done), else 0;
-- and the environment after which the next part begins, empty when there is none or the settings are newer.
-- Caller: Store::configure

-- Removes the stored state of rates that facets no longer have. Only facets with rules have rates, so there are few.
local function forget_rates(queue, rules)
  for _, env in ipairs(redis.call('HKEYS', queue.rates)) do
    if not string.match(rules[env] or '', ':%d') then
      redis.call('HDEL', queue.rates, env)
      redis.call('ZREM', queue.throttled, env)
    end
  end
end

local function main(facets)
  local call = redis.call
  if call('HGET', KEYS[4], 'stamp') ~= ARGV[1] then return { 1, '' } end
  local queue = facets.open(KEYS[2], KEYS[3], KEYS[1], tonumber(ARGV[4]))
  local revision = call('HGET', queue.settings, 'revision')
  if revision and tonumber(revision) > tonumber(ARGV[2]) then return { 0, '' } end
  facets.expect('zset', queue.ring, queue.index, queue.throttled)
  facets.expect('hash', queue.rates)
  local weights, rules = {}, {}
  for at = 11, #ARGV, 3 do weights[ARGV[at]], rules[ARGV[at]] = tonumber(ARGV[at + 1]), ARGV[at + 2] end
  local after, part = ARGV[9], tonumber(ARGV[10])
  local first = after == '' and '-' or '(' .. after
  -- The facet at the head may have used up its turn under the new weight. If so, its turn ends before other facets
  -- enter.
  local head = call('ZRANGE', queue.ring, 0, 0)[1]
  if head then facets.load(queue, head) end
  local envs = call('ZRANGE', queue.index, first, '+', 'BYLEX', 'LIMIT', 0, part)
  for _, env in ipairs(envs) do facets.load(queue, env) end

  call('HSET', queue.settings, 'revision', ARGV[2], 'lease_ms', ARGV[3], 'in_flight_limit', ARGV[4],
    'max_attempts', ARGV[5], 'retention_ms', ARGV[6], 'backoff_ms', ARGV[7], 'max_backoff_ms', ARGV[8])
  if after == '' then forget_rates(queue, rules) end
  for _, facet in ipairs(queue.touched) do
    facet.weight = weights[facet.env] or 1
    local its_rules = rules[facet.env] or ''
    -- If a facet had used up its former rate, it starts with the new one.
    if facet.rate and facet.rules ~= its_rules then call('ZREM', queue.throttled, facet.env) end
    facets.rule(queue, facet, its_rules)
    if facet.used > 0 and facet.used >= facet.weight then call('ZREM', queue.ring, facet.env) end
  end
  facets.settle_all(queue, true)
  facets.finish(queue)
  if #envs == part then return { 0, envs[#envs] } end
  -- This was the last part. Until now, `settled` shows that parts remain.
  call('HSET', queue.settings, 'settled', ARGV[2])
  return { 0, '' }
end
