-- The certificate of a server name in the route table: a string that the edge reads unchanged. It completes
-- project_resource.lua.

function resource.blocked(shared, _, text_key)
  return shared.blocked({[text_key] = 'string'}, {})
end

function resource.fields(_, fields)
  return fields
end

function resource.publish(_, _, text, text_key)
  if text == '' then
    return redis.call('DEL', text_key) == 1
  end
  if redis.call('GET', text_key) == text then
    return false
  end
  redis.call('SET', text_key, text)
  return true
end

function resource.change(text)
  return text == '' and 'certificate_removed' or 'certificate_put'
end

function resource.event_data(text, fields)
  return 'ends', text == '' and '0' or fields[2]
end

