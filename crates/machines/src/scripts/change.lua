-- The end of every script that changes a due set and defines `main`. Only the first two keys and the first argument are used here.

-- These fail before the first write if a key has another type.
redis.call('ZCARD', KEYS[1])
redis.call('ZCARD', KEYS[2])
local reply = main()
settle(KEYS[1], KEYS[2], ARGV[1])
return reply
