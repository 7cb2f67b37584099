-- Changes the registry, if it has not changed since the change was computed: the snapshot that pacemakers read, and the
-- keys that other clients can read.
-- KEYS[1]: hash, the registry of this shard
-- KEYS[2...]: any type, the keys that the commands below work on
-- ARGV[1]: string, the stamp that the change was computed from
-- ARGV[2]: string, the stamp afterwards
-- ARGV[3]: string, the snapshot afterwards
-- ARGV[4]: string, channel on which the new stamp is announced
-- ARGV[5...]: for each command its name, the place of its key in KEYS, the number of its arguments, the arguments
-- Returns 1, 0 when the stamp is another one, or -1 when the registry does not exist.
-- Caller: Store::commit

local stamp = redis.call('HGET', KEYS[1], 'stamp')
if not stamp then return -1 end
-- This is the caller's own change, whose reply was lost.
if stamp == ARGV[2] then return 1 end
if stamp ~= ARGV[1] then return 0 end
local kinds = { SADD = 'set', SREM = 'set', HSET = 'hash', HDEL = 'hash' }
local at = 5
while at <= #ARGV do
  local kind = kinds[ARGV[at]]
  local found = redis.call('TYPE', KEYS[tonumber(ARGV[at + 1])]).ok
  if kind and found ~= 'none' and found ~= kind then
    return redis.error_reply('WRONGTYPE ' .. KEYS[tonumber(ARGV[at + 1])])
  end
  at = at + 3 + tonumber(ARGV[at + 2])
end
-- Redis accepts this write at its memory limit, and then those after it: ending a subscription must always work.
redis.call('HDEL', KEYS[1], '')
at = 5
while at <= #ARGV do
  local key, n = KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  if n == 0 then redis.call(ARGV[at], key) else lists.call(ARGV[at], key, ARGV, at + 3, at + 2 + n) end
  at = at + 3 + n
end
redis.call('HSET', KEYS[1], 'stamp', ARGV[2], 'snapshot', ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[2])
return 1
