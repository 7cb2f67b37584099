-- The index of policies in the fabric, which is that of all host names. It completes desire_resource.lua and
-- adopt_resource.lua. Keys: a hash from host name to the version type last registered for it, and a zset of host names,
-- all of score 0.

function index.add(keys, name)
  redis.call('ZADD', keys[2], 0, name)
end

-- If no instance was ever registered for the name, it existed only because of its policy.
function index.remove(keys, name)
  if redis.call('HEXISTS', keys[1], name) == 0 then
    redis.call('ZREM', keys[2], name)
  end
end

return main()
