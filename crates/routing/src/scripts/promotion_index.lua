-- Promotions have no index in the fabric. It completes desire_resource.lua and adopt_resource.lua.

function index.add()
end

function index.remove()
end

return main()
