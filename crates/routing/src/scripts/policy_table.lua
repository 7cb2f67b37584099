-- The policy of a host in the route table: it becomes part of the edge's data about the host, next to the table's data
-- about the instances. It completes project_resource.lua.

function resource.blocked(shared, name)
  return shared.blocked({}, {name})
end

function resource.fields(members, fields)
  local all = {'members', members}
  for _, word in ipairs(fields) do
    all[#all + 1] = word
  end
  return all
end

function resource.publish(shared, name)
  return shared.refresh(name)
end

function resource.change()
  return 'host_altered'
end

function resource.event_data()
end

