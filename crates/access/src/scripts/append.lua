-- Appends a record to a part of the audit log, and removes the oldest records beyond its limits.
-- KEYS[1]: stream, records
-- ARGV[1]: string, the record as JSON
-- ARGV[2]: integer, the number of records that the part keeps, approximately
-- ARGV[3]: integer, the bytes that the part keeps
-- Returns nothing.
-- Caller: store/audit.rs, append
local part, record = KEYS[1], ARGV[1]
local max_records, max_bytes = ARGV[2], tonumber(ARGV[3])
-- A large record replaces many small ones. What is left over is removed with the next records.
local MAX_REMOVED = 100

-- The bytes of all records up to the end of this one.
local function position(entry)
  return tonumber(entry[2][4] or 0)
end

-- The newest records may be of an earlier version, which did not count their bytes.
local function newest_position()
  for _, count in ipairs({ 1, 100 }) do
    for _, entry in ipairs(redis.call('XREVRANGE', part, '+', '-', 'COUNT', count)) do
      if entry[2][4] then return position(entry) end
    end
  end
  return 0
end

local ends = newest_position() + #record
redis.call('XADD', part, 'MAXLEN', '~', max_records, '*', 'record', record, 'end', string.format('%.0f', ends))
for _ = 1, MAX_REMOVED do
  local oldest = redis.call('XRANGE', part, '-', '+', 'COUNT', 1)[1]
  -- Without the oldest record, these bytes remain.
  if not oldest or ends - position(oldest) < max_bytes then
    break
  end
  redis.call('XDEL', part, oldest[1])
end
