-- Makes a queue's definition take effect: writes its settings, then gives slices their weights and rules, and puts them
-- into the ring or removes them from it, part by part. The first part proves that the definition is current by the stamp of
-- the registry, and the others by the revision that it wrote: a change of something else in the registry interrupts nothing.
-- KEYS[1]: zset, the ring of the queue; the queue's other keys are built from it
-- KEYS[2]: hash, messages of queues by segment of the log
-- KEYS[3]: zset, queues by when they have something due
-- KEYS[4]: hash, the registry of this shard
-- ARGV[1]: string, the registry's stamp that the definition was taken from
-- ARGV[2]: integer, revision of the definition
-- ARGV[3]: integer, ms of a lease
-- ARGV[4]: integer, maximum number of messages of a slice in flight, 0 for no limit
-- ARGV[5]: integer, maximum number of attempts, 0 for no limit
-- ARGV[6]: integer, ms that a message may wait
-- ARGV[7]: integer, ms before the second delivery of a message, 0 for none
-- ARGV[8]: integer, maximum ms before a later delivery
-- ARGV[9]: integer, revision that was in effect for every slice, if the parts contain only what differs from it; empty if
--   they contain every slice
-- ARGV[10]: integer, 1 in the last part
-- ARGV[11...]: strings, tenants, their weights and their rules
-- Returns 0 when the part is in effect; 1 when nothing was done, because the registry has another stamp (the queue may have
-- been deleted) or another revision was in effect; 2 when nothing was done, because the settings are newer.
-- Caller: Store::configure

-- Whether the caller's definition may be written: 0, or what the script returns instead.
local function check(queue)
  local found = redis.call('HMGET', queue.settings, 'revision', 'settled')
  local revision = tonumber(found[1] or 0)
  if revision > tonumber(ARGV[2]) then return 2 end
  if ARGV[9] ~= '' and found[2] ~= ARGV[9] and found[2] ~= ARGV[2] then return 1 end
  -- Slices may have been changed by parts of a revision in between.
  if ARGV[9] ~= '' and found[1] ~= ARGV[9] and found[1] ~= ARGV[2] then return 1 end
  if revision < tonumber(ARGV[2]) and redis.call('HGET', KEYS[4], 'stamp') ~= ARGV[1] then return 1 end
  return 0, revision == 0
end

-- Reads the slices of this part. The slice at the head of the ring may have used up its turn under the new weight. Then its
-- turn ends before other slices enter the ring.
local function read_slices(slices, queue)
  local head, weights, rules = redis.call('ZRANGE', queue.ring, 0, 0)[1], {}, {}
  for at = 11, #ARGV, 3 do weights[ARGV[at]], rules[ARGV[at]] = tonumber(ARGV[at + 1]), ARGV[at + 2] end
  if weights[head] then slices.load(queue, head) end
  for at = 11, #ARGV, 3 do slices.load(queue, ARGV[at]) end
  return weights, rules
end

local function main(slices)
  local call = redis.call
  local queue = slices.open(KEYS[2], KEYS[3], KEYS[1], tonumber(ARGV[4]))
  local refusal, is_new = check(queue)
  if refusal ~= 0 then return refusal end
  slices.expect('zset', queue.ring, queue.index, queue.depths, queue.throttled, queue.leases, queue.delayed, queue.due)
  slices.expect('hash', queue.rates)
  local weights, rules = read_slices(slices, queue)
  local next_due = is_new and slices.next_due(queue)

  call('HSET', queue.settings, 'revision', ARGV[2], 'lease_ms', ARGV[3], 'in_flight_limit', ARGV[4],
    'max_attempts', ARGV[5], 'retention_ms', ARGV[6], 'backoff_ms', ARGV[7], 'max_backoff_ms', ARGV[8])
  -- A sweep that found no settings took the queue for a deleted one, and removed this time.
  if next_due then slices.schedule(queue, next_due) end
  for _, slice in ipairs(queue.touched) do
    local its_rules = rules[slice.tenant]
    -- The state of a rate is stored separately, even without messages.
    local has_rate = string.match(its_rules, ':%d')
    if not has_rate then call('HDEL', queue.rates, slice.tenant) end
    -- If a slice had used up its former rate, it starts with the new one.
    if not has_rate or slice.rate and slice.rules ~= its_rules then call('ZREM', queue.throttled, slice.tenant) end
    if slice.known then
      slice.weight = weights[slice.tenant]
      slices.rule(queue, slice, its_rules)
      if slice.used > 0 and slice.used >= slice.weight then call('ZREM', queue.ring, slice.tenant) end
    end
  end
  for _, slice in ipairs(queue.touched) do
    if slice.known then slices.settle(queue, slice, true) end
  end
  slices.finish(queue)
  -- Until this was the last part, `settled` shows that parts remain.
  -- Every slice that these parts settled is ranked; parts of an older version did not rank.
  if ARGV[10] == '1' then call('HSET', queue.settings, 'settled', ARGV[2], 'ranked', '1') end
  return 0
end
