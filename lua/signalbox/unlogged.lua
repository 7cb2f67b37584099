-- The number of answered requests without a line in the access log. nginx's own request counter includes them, so the
-- sidecar subtracts them when it checks for lost lines.

local state = ngx.shared.signalbox_state

local _M = {}

local KEY = "unlogged"

-- Called in the log phase of each location with `access_log off`.
function _M.count()
    state:incr(KEY, 1, 0)
end

-- Called in the header phase of /edge/connections. That request is counted afterwards.
function _M.report()
    ngx.header["X-Signalbox-Unlogged"] = state:get(KEY) or 0
end

return _M
