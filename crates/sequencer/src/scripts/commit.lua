-- Records that events in flight were sent, and goes on with each object's next one or gives the object back. Many
-- commits share a call, because most of what one costs is shared: only taking the next event is for each.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3]: integer, ms for which an object's last id is kept
-- ARGV[4...]: for each commit the object, the worker, the epoch of its lease, the event's id, how many gaps were told
-- with it, and 1 to go on with the next event or 0 to give the object back
-- Returns an array for each commit: `next` and then what `objects.sending` says of the next event; or `done`; or
-- `lost`, when the lease is another's by now: nothing was recorded. A repeat whose first reply was lost gets what is in
-- flight now.
-- Caller: Store::commit

local function main(objects)
  local call = redis.call
  objects.at(string.match(KEYS[1], '^(.*)queued$'))

  -- First everything is read and judged.
  local commits, names, keys = {}, {}, {}
  for at = 4, #ARGV, 6 do
    local n = #commits + 1
    local object = ARGV[at]
    commits[n] = {
      object = object, worker = ARGV[at + 1], owner = ARGV[at + 1] .. '/' .. ARGV[at + 2], id = ARGV[at + 3],
      told = tonumber(ARGV[at + 4]), more = ARGV[at + 5] == '1',
    }
    names[n] = object
    keys[2 * n - 1], keys[2 * n] = objects.of(object, 'event.worker'), objects.of(object, 'flight')
  end
  local replies, backends, found = {}, call('HMGET', KEYS[1], unpack(names)), call('MGET', unpack(keys))
  local valid, gone, seen = {}, {}, {}
  for n, commit in ipairs(commits) do
    local owner, flight = found[2 * n - 1], found[2 * n]
    commit.backend, commit.flight = backends[n], flight
    if owner ~= commit.owner or not flight or not backends[n] or seen[commit.object] then
      replies[n] = { 'lost' }
    elseif objects.id(flight) ~= commit.id then
      replies[n] = { 'next', objects.sending(commit.object, flight) }
    else
      seen[commit.object] = true
      commit.place = n
      valid[#valid + 1] = commit
      gone[#gone + 1] = keys[2 * n]
      gone[#gone + 1] = objects.of(commit.object, 'failure')
      objects.expect_backend(commit.backend)
    end
  end
  if #valid == 0 then return replies end
  objects.expect('hash', 'workers', 'numbers')
  objects.expect('zset', 'leases')
  local now = objects.now(ARGV[1])

  -- The first write is allowed at the memory limit.
  call('DEL', unpack(gone))
  local tally, going, flights, leases = objects.tally(), {}, {}, {}
  local ends = objects.text(now + tonumber(ARGV[2]))
  for _, commit in ipairs(valid) do
    local object = commit.object
    if commit.told > 0 then redis.pcall('LTRIM', objects.of(object, 'gaps'), commit.told, -1) end
    local entry = commit.more and redis.pcall('LPOP', objects.of(object, 'events'))
    if type(entry) ~= 'string' then entry = nil end
    -- Within a visit the id is noted once, for what comes next is noted as well.
    if not objects.redriven(commit.flight) and (not entry or objects.redriven(entry)) then
      call('SET', objects.of(object, 'last.event.id'), commit.id, 'PX', ARGV[3])
    end
    tally.left(commit.backend, 1)
    if entry then
      commit.entry = entry
      going[#going + 1] = commit
      flights[#flights + 1] = objects.of(object, 'flight')
      flights[#flights + 1] = entry
      leases[#leases + 1] = ends
      leases[#leases + 1] = object
    else
      tally.give_back(object, commit.worker, commit.backend)
      replies[commit.place] = { 'done' }
    end
  end
  if #going > 0 then
    call('MSET', unpack(flights))
    call('ZADD', objects.key('leases'), unpack(leases))
    local sendings = objects.sendings(going)
    for n, commit in ipairs(going) do replies[commit.place] = { 'next', sendings[n] } end
  end
  objects.count('sent', #valid)
  tally.write()
  objects.finish()
  return replies
end
