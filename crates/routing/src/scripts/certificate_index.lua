-- The index of certificates in the fabric. It completes desire_resource.lua and adopt_resource.lua. Keys: a zset of
-- server names, all of score 0; a zset of server names by the expiry of their certificates in unix seconds; and a hash
-- from server name to the published expiry mark. The argument is the expiry.

function index.add(keys, name, arguments)
  redis.call('ZADD', keys[1], 0, name)
  redis.call('ZADD', keys[2], arguments[1], name)
end

function index.remove(keys, name)
  redis.call('ZREM', keys[1], name)
  redis.call('ZREM', keys[2], name)
  redis.call('HDEL', keys[3], name)
end

return main()
