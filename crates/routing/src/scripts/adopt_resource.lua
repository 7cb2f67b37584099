-- Copies a resource of a name to the fabric as the routes primary has it, because the fabric lost it. The primary's
-- revision is kept, so that both agree afterwards. Completed by policy_index.lua or certificate_index.lua.
-- KEYS[1]: hash, name → resource with its revision as JSON
-- KEYS[2...]: hashes or sets, the keys of the index
-- ARGV[1]: string, name
-- ARGV[2]: string, the revision that the caller read in the fabric; empty = none
-- ARGV[3]: string, the resource with its revision as JSON; empty = removed
-- ARGV[4...]: strings, the arguments of the index
-- Returns 1, or 0 when the fabric has a different revision.
-- Caller: store/resource.rs, adopt_resource
local index = {}

local function main()
  local resources, index_keys = KEYS[1], lists.copy(KEYS, 2, #KEYS)
  local name, expected, text = ARGV[1], ARGV[2], ARGV[3]

  local stored = redis.call('HGET', resources, name) or ''
  if (string.match(stored, '^{"revision":(%d+),') or '') ~= expected then
    return 0
  end
  if text == '' then
    redis.call('HDEL', resources, name)
    index.remove(index_keys, name)
  else
    redis.call('HSET', resources, name, text)
    index.add(index_keys, name, lists.copy(ARGV, 4, #ARGV))
  end
  return 1
end

