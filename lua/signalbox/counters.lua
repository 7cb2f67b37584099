-- Counters of rare events, shared by all workers.

local state = ngx.shared.signalbox_state

local _M = {}

function _M.add(name)
    state:incr("count:" .. name, 1, 0)
end

function _M.get(name)
    return state:get("count:" .. name) or 0
end

return _M
