-- Makes a version of a definition active in a shard, unless a later one is active already. In the same step, the version
-- begins to govern the events of the shard's log: inputs apply an event as the version does that was active when the event
-- was published.
-- KEYS[1]: string, the active version
-- KEYS[2]: hash, version -> JSON of the definition without its text
-- KEYS[3]: hash, machine -> up to which event of this shard its inputs have applied the log, and its versions since then
-- KEYS[4]: string, the last id of an event in this shard
-- KEYS[5]: hash, machine that was deleted -> the number of its last version
-- KEYS[6]: hash, owner -> bytes that are stored for it
-- KEYS[7]: hash, client -> the bytes of its definitions of the machine
-- KEYS[8]: hash, version -> text of the definition
-- ARGV[1]: integer, the version
-- ARGV[2]: string, its JSON without its text
-- ARGV[3]: string, machine
-- ARGV[4]: integer, 1 if the version has inputs, else 0
-- ARGV[5]: string, the client that applies it
-- ARGV[6]: string, its text; empty if an earlier release stored it, in its JSON
-- Returns the version that is active now; 0 if the version was deleted, so that it does not become active again
-- Caller: Versions::switch
local current, versions, inputs, last_id, retired = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owners, by_client, sources = KEYS[6], KEYS[7], KEYS[8]
local version, record, machine, has_inputs = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4] == '1'
local client, source = ARGV[5], ARGV[6]

local active = tonumber(redis.call('GET', current) or '0')
if version <= tonumber(redis.call('HGET', retired, machine) or '0') then return active end
local applied = redis.call('HGET', inputs, machine)
local last = redis.call('GET', last_id) or '0'
-- These fail before the first write if a key has another type.
redis.call('HEXISTS', owners, client)
redis.call('HEXISTS', by_client, client)
redis.call('HEXISTS', sources, 0)
-- The text is written first, so that a reader that finds the number in `current` finds the text.
if redis.call('HSETNX', versions, ARGV[1], record) == 1 then
  if source ~= '' then redis.call('HSET', sources, ARGV[1], source) end
  redis.call('HINCRBY', by_client, client, #record + #source)
  redis.call('HINCRBY', owners, 'client:' .. client, #record + #source)
end
if active >= version then return active end
if applied or has_inputs then
  -- A version since which nothing was published governs no event.
  local before = applied and string.gsub(applied, ' %d+:' .. last .. '$', '') or last
  redis.call('HSET', inputs, machine, before .. ' ' .. ARGV[1] .. ':' .. last)
end
redis.call('SET', current, ARGV[1])
return version
