-- The edge's own answers from Lua, in the same form as those of nginx (problem.conf): application/problem+json with a
-- stable code, which the header X-Signalbox-Error repeats for whoever only looks at headers.

local json = require("signalbox.json")

local _M = {}

local TITLES = {
    [400] = "Bad Request", [404] = "Not Found", [405] = "Method Not Allowed", [502] = "Bad Gateway",
    [503] = "Service Unavailable", [504] = "Gateway Timeout",
}

-- retry_after: seconds, or nil.
function _M.problem(status, code, detail, retry_after)
    ngx.status = status
    local header = ngx.header
    header["Content-Type"] = "application/problem+json"
    header["X-Signalbox-Error"] = code
    header["Retry-After"] = retry_after
    local body = '{"type":"about:blank","title":"' .. TITLES[status] .. '","status":' .. status
        .. ',"code":"' .. code .. '","detail":' .. json.string(detail)
        .. ',"request_id":' .. json.string(ngx.var.edge_request_id) .. "}\n"
    header["Content-Length"] = #body
    ngx.print(body)
    return ngx.exit(status)
end

return _M
