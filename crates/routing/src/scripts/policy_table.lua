-- The policy of a host in the route table: it becomes part of the edge's data about the host, next to the table's data
-- about the instances. It completes project_resource.lua.

function resource.blocked(shared, name)
  return shared.blocked({}, {name})
end

function resource.fields(members, fields)
  return {'members', members, unpack(fields)}
end

function resource.publish(shared, name)
  return shared.refresh(name)
end

function resource.change()
  return 'host_altered'
end

function resource.event_data()
  return {}
end

