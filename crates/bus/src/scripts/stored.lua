-- Shared by the scripts that store or remove events, and appended before them: whose bytes an event is.

-- The environment of an event as it is stored: the first member of this name. In a text before it, a quotation mark has a
-- backslash.
local function environment_of(entry)
  local _, from = string.find(entry, '"environment":"', 1, true)
  local at = from
  repeat
    at = string.find(entry, '["\\]', at + 1)
    if not at then return nil end
    local is_end = string.sub(entry, at, at) == '"'
    if not is_end then at = at + 1 end
  until is_end
  return (string.gsub(string.sub(entry, from + 1, at - 1), '\\(.)', '%1'))
end

-- Changes the bytes that are stored for environments, if they are limited (see publish_quota.lua): `sign` is 1 for entries
-- that are stored and -1 for those that are removed. With `segment`, they are in that segment of the log.
local function change_stored(key, entries, sign, segment)
  if #entries == 0 or redis.call('EXISTS', key) == 0 then return end
  local bytes = {}
  for at = 1, #entries do
    local env = environment_of(entries[at])
    if env then bytes[env] = (bytes[env] or 0) + sign * #entries[at] end
  end
  for env, changed in pairs(bytes) do
    if redis.call('HINCRBY', key, env, string.format('%.0f', changed)) <= 0 then redis.call('HDEL', key, env) end
    if segment then redis.call('HINCRBY', segment .. ':environments', env, string.format('%.0f', changed)) end
  end
end

