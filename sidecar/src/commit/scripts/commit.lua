-- Adds the increments of a range of log lines and moves the position past it: both or neither.
-- A range that is too large for one script is committed in parts. Every part but the last moves the unfinished window
-- instead of the position, so the added increments are always on record.
-- The script first compares owner, claim, generation, position and window. So a commit changes nothing if it is repeated
-- (its reply was lost), late (it waited in a socket) or from a replaced process.
-- A key of another type, or a field that is not a number, cannot be incremented. It is skipped and reported: a script
-- that stopped there would count half of its lines, again at each retry.
-- KEYS[1]: string, bytes counted of the current file
-- KEYS[2]: hash, the identity of that file, and the process that may move the position
-- KEYS[3...]: hash, counters; the last ones: zset, version types by their number in a minute
-- ARGV[1]: string, the committing process
-- ARGV[2]: integer, the number of its claim
-- ARGV[3]: integer, the generation where it starts
-- ARGV[4]: integer, bytes, the position where it starts
-- ARGV[5]: integer, bytes, the new position
-- ARGV[6]: integer, the new generation
-- ARGV[7]: integer, device of the current file, or ""
-- ARGV[8]: integer, inode of the current file, or ""
-- ARGV[9]: string, fingerprint of the current file, or ""
-- ARGV[10]: string, how far other files were read; "=" leaves what is stored
-- ARGV[11]: integer, good lines
-- ARGV[12]: integer, bad lines
-- ARGV[13]: string, beginning of a bad line, or ""
-- ARGV[14]: integer, gaps found
-- ARGV[15]: integer, bytes known to be lost in these gaps
-- ARGV[16]: string, the unfinished window where it starts, or ""
-- ARGV[17]: integer, the number of its finished parts
-- ARGV[18]: string, the unfinished window after it; "" completes it, else ARGV[5] to ARGV[15] wait for its last part
-- ARGV[19]: integer, number of zsets among the keys, which are the last ones
-- ARGV[20...]: for each hash: unix second of its expiry or 0, number of fields, then field and increment for each; for each
--   zset the same with members
-- Returns {"committed", number of rejected increments, first rejection}, or {"elsewhere", owner, claim}: nothing changed.
-- Caller: commit::RedisStore::commit

-- A ranking with this many members is cut to those with the highest numbers. It may grow by a part before it is cut, so that
-- a call does not often cut it.
local MAX_RANKED, MORE_RANKED = 10000, 2000

local position, file = KEYS[1], KEYS[2]
local me, claim, generation, from = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local under_way, done, after = ARGV[16], ARGV[17], ARGV[18]

local stored = redis.call('HMGET', file, 'owner', 'claim', 'generation', 'window', 'parts_done')
if stored[1] ~= me or stored[2] ~= claim or (stored[3] or '0') ~= generation
  or (stored[4] or '') ~= under_way or (stored[5] or '0') ~= done
  or (redis.call('GET', position) or '0') ~= from then
  return { 'elsewhere', stored[1] or '', stored[2] or '0' }
end

-- Redis can reject the first write of a script (memory, disk) but not later ones, so nothing is partly applied.
if after ~= '' then
  redis.call('HSET', file, 'window', after, 'parts_done', string.format('%d', done + 1))
else
  local counts = { lines = ARGV[11], bad_lines = ARGV[12], gaps = ARGV[14], gap_bytes = ARGV[15] }
  if ARGV[5] == from and ARGV[6] == generation and counts.lines == '0' and counts.bad_lines == '0'
    and counts.gaps == '0' then
    return { 'committed', '0', '' }
  end
  redis.call('SET', position, ARGV[5])
  redis.call('HSET', file, 'generation', ARGV[6], 'device', ARGV[7], 'inode', ARGV[8], 'fingerprint', ARGV[9])
  if ARGV[10] ~= '=' then
    redis.call('HSET', file, 'finished', ARGV[10])
  end
  if under_way ~= '' then
    redis.call('HDEL', file, 'window', 'parts_done')
  end
  for field, count in pairs(counts) do
    if count ~= '0' then
      redis.call('HINCRBY', file, field, count)
    end
  end
  if ARGV[13] ~= '' then
    redis.call('HSET', file, 'bad_sample', ARGV[13])
  end
end

local refused, refusal = 0, ''
local first_ranking = #KEYS - tonumber(ARGV[19]) + 1
local at = 20
for index = 3, #KEYS do
  local key, ends, fields = KEYS[index], ARGV[at], tonumber(ARGV[at + 1])
  local is_ranking = index >= first_ranking
  at = at + 2
  local new = false
  for _ = 1, fields do
    local sum
    if is_ranking then
      sum = redis.pcall('ZINCRBY', key, ARGV[at + 1], ARGV[at])
    else
      sum = redis.pcall('HINCRBY', key, ARGV[at], ARGV[at + 1])
    end
    if type(sum) ~= 'table' then
      new = new or tonumber(sum) == tonumber(ARGV[at + 1])
    else
      refused = refused + 1
      if refusal == '' then
        refusal = key .. ': ' .. sum.err
      end
    end
    at = at + 2
  end
  local ranked = is_ranking and redis.pcall('ZCARD', key)
  if type(ranked) == 'number' and ranked > MAX_RANKED + MORE_RANKED then
    redis.pcall('ZREMRANGEBYRANK', key, 0, ranked - MAX_RANKED - 1)
  end
  -- A hash without a new field is not new, so its expiry is already set.
  if new and ends ~= '0' then
    redis.call('EXPIREAT', key, ends)
  end
end
return { 'committed', tostring(refused), refusal }
