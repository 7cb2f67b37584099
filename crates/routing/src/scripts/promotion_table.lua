-- The promotion of a host in the route table, so that the fabric can get it back from there. Routers do not read it. It
-- completes project_resource.lua.

function resource.blocked()
end

function resource.fields(promotion)
  return {'promotion', promotion}
end

function resource.publish()
  return false
end

function resource.change()
end

function resource.event_data()
end

