-- Reads the next entries of the list of changes of the table, together with the table's serial, at one point in time.
-- KEYS[1]: string, serial
-- KEYS[2]: string, lineage of the table
-- KEYS[3]: stream, the changes of the table
-- ARGV[1]: string, the newest epoch that the caller knows; empty = none
-- ARGV[2]: string, the last entry that the caller knows of it
-- ARGV[3]: integer, maximum number of entries
-- Returns {newest epoch or '', serial, id of the newest entry or '', {id, {field, value, …}}, …}: the entries after the
--   one known, or from the first on if the epoch is another.
-- Caller: store/changes.rs, changes_after
local serial_key, lineage_key, changes = KEYS[1], KEYS[2], KEYS[3]
local epoch, after, limit = ARGV[1], ARGV[2], ARGV[3]

local newest = string.match(redis.call('GET', lineage_key) or '', '^%S+') or ''
local from = '-'
if newest == epoch and after ~= '' then
  from = '(' .. after
end
local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
local found = {newest, redis.call('GET', serial_key) or '0', last and last[1] or ''}
for _, entry in ipairs(redis.call('XRANGE', changes, from, '+', 'COUNT', limit)) do
  found[#found + 1] = entry
end
return found
