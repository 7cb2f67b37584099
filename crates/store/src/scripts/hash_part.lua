-- Reads values of a hash until they have so many bytes.
-- KEYS[1]: hash, any
-- ARGV[1]: integer, maximum bytes (the first value is read whatever its size)
-- ARGV[2...]: strings, the fields
-- Returns an array: the values of the first fields, nil for one that does not exist; at least one if there are fields.
-- Caller: hash_part

local bytes = tonumber(ARGV[1])
local values = {}
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  bytes = bytes - (value and #value or 0)
  if bytes < 0 and #values > 0 then return values end
  values[#values + 1] = value
end
return values
