-- Passes lists to Redis commands in parts. Lua can pass fewer than 8,000 values to a function, and a longer list raises an
-- error, which after a first write leaves half of a call behind. So scripts call `unpack` only for a fixed number of values.
-- The script runner puts this text after the header of each script that uses `lists`.

local lists = {}

-- Values in a part. It is even, so that pairs (of HSET, ZADD, MSET) stay together.
local PART = 1000

-- Calls a function with the items of each part. `from` and `to` select a part of the list.
function lists.each(list, pass, from, to)
  to = to or #list
  for at = from or 1, to, PART do pass(unpack(list, at, math.min(at + PART - 1, to))) end
end

-- Calls a command with the items of a list after its key; `key` is nil for a command that takes only the list (MSET, DEL).
-- Returns the sum of the replies, if they are numbers. An empty list makes no call.
function lists.call(command, key, list, from, to)
  local sum = 0
  lists.each(list, function(...)
    local reply
    if key then reply = redis.call(command, key, ...) else reply = redis.call(command, ...) end
    if type(reply) == 'number' then sum = sum + reply end
  end, from, to)
  return sum
end

-- The same for a command that returns an array: returns one array for all items.
function lists.read(command, key, list)
  local values, n = {}, 0
  lists.each(list, function(...)
    local found
    if key then found = redis.call(command, key, ...) else found = redis.call(command, ...) end
    if #list <= PART then values = found else
      for i = 1, #found do values[n + i] = found[i] end
      n = n + #found
    end
  end)
  return values
end

-- Copies a part of a list.
function lists.copy(list, from, to)
  local copied = {}
  for i = from, to or #list do copied[#copied + 1] = list[i] end
  return copied
end

