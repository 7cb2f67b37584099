-- Removes a label without a record from the index of a state, while no version of its machine is active: a later machine of the
-- name may have a label of this name.
-- KEYS[1]: string, the active version
-- KEYS[2]: zset, label -> 0
-- ARGV[1]: string, the label
-- Returns 1, or 0 if nothing was removed.
-- Caller: Records::remove_from_state
local current, index, label = KEYS[1], KEYS[2], ARGV[1]

if redis.call('EXISTS', current) == 1 then return 0 end
return redis.call('ZREM', index, label)
