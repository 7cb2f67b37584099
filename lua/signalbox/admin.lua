-- The edge's own endpoints on the admin listener.

local ack = require("signalbox.ack")
local answer = require("signalbox.answer")
local certificates = require("signalbox.certificates")
local explain = require("signalbox.explain")
local follow = require("signalbox.follow")
local hostname = require("signalbox.hostname")
local in_flight = require("signalbox.in_flight")
local json = require("signalbox.json")
local link = require("signalbox.link")
local outliers = require("signalbox.outliers")
local resolve = require("signalbox.resolve")
local routes = require("signalbox.routes")
local secret = require("signalbox.secret")
local shared = require("signalbox.shared")
local snapshot = require("signalbox.snapshot")

local format, lower, match = string.format, string.lower, string.match
local concat = table.concat
local flush, sleep, state = ngx.flush, ngx.sleep, ngx.shared.signalbox_state
local pairs, tonumber, type = pairs, tonumber, type

local _M = {}

local function bad(detail)
    return answer.problem(400, "invalid_parameter", detail)
end

local function number(args, name, pattern)
    local text = args[name]
    if text == nil then
        return nil, true
    end
    local good = type(text) == "string" and match(text, pattern) and #text <= 15
    return good and tonumber(text) or nil, good
end

local function acknowledgement()
    local args = ngx.req.get_uri_args(10)
    local serial, serial_good = number(args, "serial", "^%d+$")
    if not serial_good then
        return bad("`serial` must be a non-negative integer.")
    end
    local wait, wait_good = number(args, "wait", "^%d*%.?%d+$")
    if not wait_good then
        return bad("`wait` must be a number of seconds.")
    end
    ngx.print(ack.await(serial, wait or 0))
end

-- Requests in flight by address, of hosts whose policy counts them.
local function under_way()
    local parts = {}
    for address, count in pairs(in_flight.everywhere()) do
        parts[#parts + 1] = format("%s:%.0f", json.string(address), count)
    end
    return "{" .. concat(parts, ",") .. "}"
end

-- Maximum number of ejected instances that a router reports: the report is written every second.
local MAX_EJECTED = 200

-- Ejected instances: address and end of the ejection in unix milliseconds.
local function ejected()
    local parts = outliers.list(MAX_EJECTED)
    for i = 1, #parts do
        parts[i] = format("%s:%.0f", json.string(parts[i][1]), parts[i][2])
    end
    return "{" .. concat(parts, ",") .. "}"
end

local function requested_names()
    local names = certificates.requested()
    for i = 1, #names do
        names[i] = json.string(names[i])
    end
    return "[" .. concat(names, ",") .. "]"
end

local function status()
    local workers = ack.workers()
    local alarm
    local stale = false
    for i = 1, #workers do
        stale = stale or not workers[i].accepted
        if workers[i].alarm ~= "" then
            alarm = workers[i].alarm
        end
    end
    local _, connected = follow.state()
    local reason = not connected and link.reason
    ngx.print(format(
        '{"connected":%s,"reason":%s,"stale":%s,"alarm":%s,"serial":%.0f,"epoch":%s,"hosts":%d,"suspects":%d,'
            .. '"negative":%d,"known":%d,"generation":%.0f,"run":"%s","worker":%d,"memory_kb":%d,"in_flight":%s,'
            .. '"ejected":%s,"requested_names":%s,"workers":%s}\n',
        connected and "true" or "false", reason and json.string(reason) or "null", stale and "true" or "false",
        alarm and json.string(alarm) or "null",
        ack.lowest(workers), json.string(ack.epoch(workers)), routes.hosts, routes.suspects, routes.absent:size(),
        shared.size(), shared.generation(), secret.run(), ngx.worker.id() or -1, collectgarbage("count"), under_way(),
        ejected(), requested_names(), ack.workers_json(workers)))
end

-- The shortest pause of nginx. A flush yields only while the client reads more slowly than the worker writes.
local PAUSE = 0.001
-- How long a worker that died keeps others from writing the table without secrets, seconds; a living one renews it.
local HIDDEN_SECONDS = 60
local HIDDEN_KEY = "hidden_snapshot"

local function pause()
    sleep(PAUSE)
    return flush(true) == 1
end

-- Writes the table without secrets. Reading all policies takes time, and any process of this machine may request it, so
-- a router does this once at a time.
local function hidden_text(generation)
    if not state:add(HIDDEN_KEY, true, HIDDEN_SECONDS) then
        ngx.header["ETag"] = nil
        return answer.problem(429, "too_many_requests", "Another client is reading the table. Retry later.", 1)
    end
    ngx.header["Content-Type"] = "text/plain; charset=utf-8"
    local written, err = pcall(snapshot.write, generation, ngx.print, function()
        state:set(HIDDEN_KEY, true, HIDDEN_SECONDS)
        return pause()
    end, true)
    state:delete(HIDDEN_KEY)
    if not written then
        error(err, 0)
    end
end

local function table_text()
    local proof = ngx.var.http_x_signalbox_proof
    local hide = not secret.is_proven("table " .. secret.run(), proof)
    if not hide then
        ngx.header["X-Signalbox-Proof"] = secret.prove("answer " .. proof)
    end
    -- Read before the table, so that a change while it is written causes another fetch and is never missed.
    local generation = format("%.0f", shared.generation())
    local tag = (hide and '"hidden-' or '"') .. generation .. '"'
    ngx.header["ETag"] = tag
    ngx.header["X-Signalbox-Generation"] = generation
    if ngx.var.http_if_none_match == tag then
        ngx.status = 304
        return ngx.exit(304)
    end
    if hide and ngx.req.get_method() ~= "HEAD" then
        return hidden_text(generation)
    end
    ngx.header["Content-Type"] = "text/plain; charset=utf-8"
    if ngx.req.get_method() ~= "HEAD" then
        snapshot.write(generation, ngx.print, pause)
    end
end

-- Requires a header that neither a form nor a plain cross-site request can send.
local function accept()
    if ngx.var.http_x_signalbox_accept ~= "table" then
        return bad("To make this router accept the table in Redis, send the header `X-Signalbox-Accept: table`.")
    end
    shared.forget_table()
    ngx.print('{"accepted":true}\n')
end

-- The state of a host's instances: in, draining, unhealthy or ejected.
local function instance_states()
    local host = ngx.req.get_uri_args(10).host
    if type(host) ~= "string" or host == "" then
        return bad("`host` is required: the host name to show.")
    elseif not hostname.valid(host) then
        return bad("`host` is not a valid host name.")
    end
    host = lower(host)
    local route, name = resolve.host(host)
    if route == nil then
        return answer.problem(503, "table_unreachable",
            "This host is not known here and the route table cannot be read.")
    elseif not route then
        return answer.problem(404, "no_route", "No application is registered under this host name.")
    end
    ngx.print(explain.host(host, name, route), "\n")
end

local GET = { ["/edge/ack"] = acknowledgement, ["/edge/status"] = status, ["/edge/snapshot"] = table_text,
    ["/edge/outliers"] = instance_states }
local POST = { ["/edge/accept"] = accept }

function _M.serve()
    local method, uri = ngx.req.get_method(), ngx.var.uri
    ngx.req.discard_body()
    local handler = method == "POST" and POST[uri] or (method == "GET" or method == "HEAD") and GET[uri]
    if handler then
        return handler()
    elseif GET[uri] or POST[uri] then
        ngx.header["Allow"] = GET[uri] and "GET, HEAD" or "POST"
        return answer.problem(405, "method_not_allowed", "This endpoint does not support the method.")
    end
    return answer.problem(404, "not_found", "No such endpoint. The edge has /edge/ack, /edge/status, /edge/snapshot, "
        .. "/edge/outliers, /edge/connections and /edge/accept.")
end

return _M
