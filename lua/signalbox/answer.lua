-- The answers that Lua gives in place of an application, in the same form as nginx's own (problem.conf):
-- application/problem+json with a stable code, which is also in the header X-Signalbox-Error. A client that asks for
-- HTML, such as a browser, gets the same as a small page. A gRPC client gets a gRPC status.

local json = require("signalbox.json")
local record = require("signalbox.record")
local routes = require("signalbox.routes")

local find, gsub, format = string.find, string.gsub, string.format
local var = ngx.var

local _M = {}

local TITLES = {
    [400] = "Bad Request", [401] = "Unauthorized", [403] = "Forbidden", [404] = "Not Found",
    [405] = "Method Not Allowed",
    [413] = "Content Too Large", [429] = "Too Many Requests", [502] = "Bad Gateway", [503] = "Service Unavailable",
    [504] = "Gateway Timeout", [508] = "Loop Detected",
}

local PAGE = '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
    .. '<meta name="viewport" content="width=device-width">'
    .. "<title>%d %s</title>\n<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;"
    .. "padding:0 1rem;color:#222}small{color:#777}</style>\n<h1>%s</h1>\n<p>%s</p>\n"
    .. "<p><small>%d %s · %s</small></p>\n"

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

local function html(text)
    return (gsub(text, '[&<>"]', ENTITIES))
end

-- Whether the Accept header names HTML, and before JSON if it names both. Its q values are not evaluated.
local function wants_html()
    local accept = var.http_accept
    local at = accept and find(accept, "text/html", 1, true)
    local other = at and find(accept, "json", 1, true)
    return at and not (other and other < at)
end

-- As gRPC maps HTTP codes: UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED if there is no such endpoint,
-- RESOURCE_EXHAUSTED, FAILED_PRECONDITION for a loop; otherwise INVALID_ARGUMENT if the call is at fault, and
-- UNAVAILABLE if it may be repeated.
local GRPC_STATUS = { [401] = 16, [403] = 7, [404] = 12, [405] = 12, [413] = 8, [429] = 8, [501] = 12, [508] = 9 }
local INVALID_ARGUMENT, UNAVAILABLE = 3, 14

-- Whether the client expects a gRPC status.
function _M.is_grpc()
    return var.edge_grpc == "1"
end

-- Trailers only: one header frame that ends the stream (the gRPC protocol over HTTP/2).
local function grpc(status, detail)
    ngx.status = 200
    -- The log has the status that this means: otherwise a host without a working instance would seem to be healthy.
    var.edge_answered = status
    ngx.header["Content-Type"] = "application/grpc"
    ngx.header["grpc-status"] = GRPC_STATUS[status] or status < 500 and INVALID_ARGUMENT or UNAVAILABLE
    ngx.header["grpc-message"] = detail
    ngx.header["Content-Length"] = 0
    return ngx.exit(200)
end

-- The error page that the policy of the host defines for a status.
local function own_page(status)
    local route = ngx.ctx.asked or routes.known(var.host or "")
    local rules = route and record.rules(route)
    return rules and rules.error_pages and rules.error_pages[status]
end

-- retry_after: seconds, or nil.
function _M.problem(status, code, detail, retry_after)
    local header = ngx.header
    header["X-Signalbox-Error"] = code
    header["Retry-After"] = retry_after
    if _M.is_grpc() then
        return grpc(status, detail)
    end
    ngx.status = status
    local title, id = TITLES[status] or "Error", var.edge_request_id
    local body
    local page = own_page(status)
    if page then
        header["Content-Type"] = page.content_type
        body = page.body
    elseif wants_html() then
        header["Content-Type"] = "text/html; charset=utf-8"
        body = format(PAGE, status, title, title, html(detail), status, code, html(id))
    else
        header["Content-Type"] = "application/problem+json"
        body = '{"type":"about:blank","title":"' .. title .. '","status":' .. status
            .. ',"code":"' .. code .. '","detail":' .. json.string(detail)
            .. ',"request_id":' .. json.string(id) .. "}\n"
    end
    -- A cache must not serve the page to a client that asked for JSON.
    header["Vary"] = "Accept"
    header["Content-Length"] = #body
    ngx.print(body)
    return ngx.exit(status)
end

-- Answers for nginx, which has ended the request with an error.
function _M.failed()
    return _M.problem(ngx.status, var.edge_reason, var.edge_detail)
end

return _M
