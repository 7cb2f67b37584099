-- Gives a machine, among the machines of its shard, the time of the first entry of its due set (`machine:<machine>:due`). Every
-- script that changes a due set calls this afterwards. Workers sleep until the earliest time of all machines, so an earlier one
-- is published to them.
local function settle(due, machines, channel)
  local machine = string.match(due, '([^:]*):due$')
  local at = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  local before = redis.call('ZSCORE', machines, machine) or nil
  if at == before then return end
  if not at then
    redis.call('ZREM', machines, machine)
    return
  end
  redis.call('ZADD', machines, at, machine)
  local is_earlier = not before or tonumber(at) < tonumber(before)
  if is_earlier and redis.call('ZRANK', machines, machine) == 0 then redis.call('PUBLISH', channel, at) end
end
