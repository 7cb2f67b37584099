-- Requests that were answered and have no line in the access log. nginx' own counter of requests includes them, so
-- whoever looks for lost lines (the sidecar) has to take them off.

local state = ngx.shared.signalbox_state

local _M = {}

local KEY = "unlogged"

-- Log phase of each location with `access_log off`.
function _M.count()
    state:incr(KEY, 1, 0)
end

-- Header phase of /edge/connections; its own request is counted after it.
function _M.tell()
    ngx.header["X-Signalbox-Unlogged"] = state:get(KEY) or 0
end

return _M
