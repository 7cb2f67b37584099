-- Records that events in flight were sent, and continues with each object's next one or gives the object back. Many
-- commits share a call, because most of its cost is shared: only taking the next event is for each.
-- KEYS[1]: hash, object -> its backend
-- ARGV[1]: integer, unix ms; empty for the time of this server
-- ARGV[2]: integer, ms that a lease lasts
-- ARGV[3]: integer, ms for which an object's last id is kept
-- ARGV[4...]: for each commit the object, the worker, the epoch of its lease, the event's id, how many gaps were
-- reported with it, and 1 to continue with the next event or 0 to give the object back
-- Returns an array for each commit: `next` and then what `objects.sending` returns for the next event; or `done`; or
-- `lost`, when another worker has the lease by now: nothing was recorded. A repeat whose first reply was lost gets what
-- is in flight now.
-- Caller: Store::commit

-- Reads the commits, and what is stored of their objects.
local function read_commits(objects)
  local commits, names, keys = {}, {}, {}
  for at = 4, #ARGV, 6 do
    local n = #commits + 1
    local object = ARGV[at]
    commits[n] = {
      place = n, object = object, worker = ARGV[at + 1], owner = ARGV[at + 1] .. '/' .. ARGV[at + 2],
      id = ARGV[at + 3], reported = tonumber(ARGV[at + 4]), more = ARGV[at + 5] == '1',
    }
    names[n] = object
    keys[2 * n - 1], keys[2 * n] = objects.of(object, 'event.worker'), objects.of(object, 'flight')
  end
  local backends, found = lists.read('HMGET', KEYS[1], names), lists.read('MGET', nil, keys)
  for n, commit in ipairs(commits) do
    commit.backend, commit.flight_key = backends[n], keys[2 * n]
    commit.holds, commit.flight = found[2 * n - 1] == commit.owner, found[2 * n]
  end
  return commits
end

-- Replies to the commits that are not valid. Returns the others, and the keys that they delete.
local function judge(objects, commits, replies)
  local valid, gone, seen = {}, {}, {}
  for n, commit in ipairs(commits) do
    if not commit.holds or not commit.flight or not commit.backend or seen[commit.object] then
      replies[n] = { 'lost' }
    elseif objects.id(commit.flight) ~= commit.id then
      replies[n] = { 'next', objects.sending(commit.object, commit.flight) }
    else
      seen[commit.object] = true
      valid[#valid + 1] = commit
      gone[#gone + 1] = commit.flight_key
      gone[#gone + 1] = objects.of(commit.object, 'failure')
      objects.expect_backend(commit.backend)
    end
  end
  return valid, gone
end

-- Records that an event was sent. Returns the object's next event if the worker continues.
local function record(objects, commit)
  local object = commit.object
  if commit.reported > 0 then redis.pcall('LTRIM', objects.of(object, 'gaps'), commit.reported, -1) end
  local entry = commit.more and redis.pcall('LPOP', objects.of(object, 'events'))
  if type(entry) ~= 'string' then entry = nil end
  -- Within a visit the id is stored once, because the next event stores its own.
  if not objects.redriven(commit.flight) and (not entry or objects.redriven(entry)) then
    redis.call('SET', objects.of(object, 'last.event.id'), commit.id, 'PX', ARGV[3])
  end
  return entry
end

-- Puts the next events in flight and extends the leases.
local function put_in_flight(objects, going, ends, replies)
  if #going == 0 then return end
  local flights, leases = {}, {}
  for n, commit in ipairs(going) do
    flights[2 * n - 1], flights[2 * n] = commit.flight_key, commit.entry
    leases[2 * n - 1], leases[2 * n] = ends, commit.object
  end
  lists.call('MSET', nil, flights)
  lists.call('ZADD', objects.key('leases'), leases)
  local sendings = objects.sendings(going)
  for n, commit in ipairs(going) do replies[commit.place] = { 'next', sendings[n] } end
end

local function main(objects)
  local replies = {}
  local valid, gone = judge(objects, read_commits(objects), replies)
  if #valid == 0 then return replies end
  objects.expect('hash', 'workers', 'numbers')
  objects.expect('zset', 'leases')
  local now = objects.now(ARGV[1])

  -- DEL is first: at its memory limit, Redis rejects commands that need memory unless the script has already written.
  lists.call('DEL', nil, gone)
  local tally, going, sent = objects.tally(), {}, {}
  for _, commit in ipairs(valid) do
    commit.entry = record(objects, commit)
    tally.left(commit.backend, 1)
    sent[#sent + 1] = commit.flight
    if commit.entry then
      going[#going + 1] = commit
    else
      tally.give_back(commit.object, commit.worker, commit.backend)
      replies[commit.place] = { 'done' }
    end
  end
  put_in_flight(objects, going, objects.text(now + tonumber(ARGV[2])), replies)
  objects.charge(sent, -1)
  objects.count('sent', #valid)
  tally.write()
  return replies
end
