-- Compares the numbers of the shard with each other. Changes nothing.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1...]: string, names of backends
-- Returns an array of findings, each a predicate, a name and what is wrong.
-- Caller: Store::sums

local function main(objects)
  local call = redis.call
  local numbers, findings, total, ready = objects.key('numbers'), {}, 0, 0
  for at = 1, #ARGV do
    total = total + tonumber(call('HGET', numbers, 'objects@' .. ARGV[at]) or 0)
    ready = ready + call('ZCARD', objects.ready_key(ARGV[at]))
  end
  local queued = call('HLEN', KEYS[1])
  if total ~= queued then
    findings[1] = { 'O9', 'objects', objects.text(queued) .. ' objects are queued, the counts of the backends are '
      .. objects.text(total) }
  end
  local leased = call('ZCARD', objects.key('leases'))
  local states = ready + leased + call('ZCARD', objects.key('retry')) + call('ZCARD', objects.key('parked'))
  if states ~= queued then
    findings[#findings + 1] = { 'O12', 'objects', objects.text(queued) .. ' objects are queued, but '
      .. objects.text(states) .. ' are ready, leased, waiting for a retry or parked' }
  end
  local holding = call('HLEN', objects.key('workers'))
  if holding ~= leased then
    findings[#findings + 1] = { 'O11', 'workers', objects.text(holding) .. ' workers hold objects, '
      .. objects.text(leased) .. ' objects are leased' }
  end
  return findings
end
