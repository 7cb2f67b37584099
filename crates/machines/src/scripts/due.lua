-- Sets a label's entry in the due set to the time that its record requires, or removes it. If the record has changed
-- since it was read, nothing is done, because that change has set the entry.
-- KEYS[1]: zset, entry -> when it is due, unix ms
-- KEYS[2]: zset, machine -> when its first entry is due, unix ms
-- KEYS[3]: string, the label's record
-- ARGV[1]: string, the channel for a new earliest due time
-- ARGV[2]: string, the header that the record must have; empty for none
-- ARGV[3]: string, the entry
-- ARGV[4]: integer, unix ms; empty to remove the entry
-- Returns 1, or 0 when the record has changed.
-- Caller: DueSet::correct
local due, record = KEYS[1], KEYS[3]
local expected, entry, at = ARGV[2], ARGV[3], ARGV[4]

local function main()
  -- The length of a header in bytes, as in labels.lua.
  if redis.call('GETRANGE', record, 0, 20) ~= expected then return 0 end
  if at == '' then
    redis.call('ZREM', due, entry)
  else
    redis.call('ZADD', due, at, entry)
  end
  return 1
end
