-- /metrics of the admin listener: the edge's own metrics, then those of the daemons, as one OpenMetrics page. If a
-- daemon does not answer, only its lines are missing.

local ack = require("signalbox.ack")
local answer = require("signalbox.answer")
local outliers = require("signalbox.outliers")
local counters = require("signalbox.counters")
local in_flight = require("signalbox.in_flight")

local format, find, sub = string.format, string.find, string.sub
local ipairs = ipairs
local capture_multi = ngx.location.capture_multi

local _M = {}

local PARTS = { "pacemaker", "sidecar" }
local SOURCES = { { "/.signalbox/metrics/pacemaker" }, { "/.signalbox/metrics/sidecar" } }

-- Family, type, help, and the function that returns the value if it is not a counter of counters.lua. The sample of a
-- counter is called <family>_total.
local SAMPLES = {
    { "retries", "counter", "Tries after the first, at another instance." },
    { "ejections", "counter", "Ejections of failing instances.", outliers.ejections },
    { "held", "counter", "Requests that waited for their host to get an instance." },
    { "limited", "counter", "Requests rejected by a limit of their host." },
    { "in_flight", "gauge", "Requests in flight where a policy counts them.", in_flight.sum },
}

local function family(name, kind, help)
    ngx.say("# HELP signalbox_edge_", name, " ", help, "\n# TYPE signalbox_edge_", name, " ", kind)
end

local function samples()
    for i = 1, #SAMPLES do
        local name, kind, value = SAMPLES[i][1], SAMPLES[i][2], SAMPLES[i][4]
        family(name, kind, SAMPLES[i][3])
        ngx.say(format("signalbox_edge_%s%s %.0f", name, kind == "counter" and "_total" or "",
            value and value() or counters.get(name)))
    end
end

-- Client connections as nginx counts them, of any host. Idle keep-alive connections are `waiting`.
local function connections()
    family("connections", "gauge", "Client connections by state.")
    local var = ngx.var
    for _, state in ipairs({ "reading", "writing", "waiting" }) do
        ngx.say(format('signalbox_edge_connections{state="%s"} %s', state, var["connections_" .. state]))
    end
end

-- Whether a daemon answered with its whole page.
local function is_whole(response)
    return response.status == 200 and not response.truncated
end

-- A daemon's page without its end mark.
local function lines_of(body)
    local last = find(body, "# EOF", 1, true)
    body = last and sub(body, 1, last - 1) or body
    return (body == "" or sub(body, -1) == "\n") and body or body .. "\n"
end

local function own(answers)
    samples()
    connections()
    local workers = ack.workers()
    family("worker_serial", "gauge", "Serial of the route table acknowledged by a worker.")
    for i = 1, #workers do
        ngx.say(format('signalbox_edge_worker_serial{worker="%d"} %.0f', workers[i].worker, workers[i].serial))
    end
    family("worker_accepted", "gauge", "1 while a worker is connected and accepts the table.")
    for i = 1, #workers do
        ngx.say(format('signalbox_edge_worker_accepted{worker="%d"} %d',
            workers[i].worker, workers[i].accepted and 1 or 0))
    end
    family("part_up", "gauge", "1 when the part answered this scrape.")
    for i = 1, #PARTS do
        ngx.say(format('signalbox_edge_part_up{part="%s"} %d', PARTS[i], is_whole(answers[i]) and 1 or 0))
    end
end

function _M.serve()
    local method = ngx.req.get_method()
    if method ~= "GET" and method ~= "HEAD" then
        ngx.header["Allow"] = "GET, HEAD"
        return answer.problem(405, "method_not_allowed", "This endpoint does not support the method.")
    end
    local answers = { capture_multi(SOURCES) }
    ngx.header["Content-Type"] = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    own(answers)
    for i = 1, #PARTS do
        if is_whole(answers[i]) then
            ngx.print(lines_of(answers[i].body))
        end
    end
    ngx.say("# EOF")
end

return _M
