-- /metrics of the admin listener: what the edge knows of itself, then the daemons' own texts one after the other. A
-- daemon that does not answer costs its lines, never the whole page.

local ack = require("signalbox.ack")
local answer = require("signalbox.answer")
local circuits = require("signalbox.circuits")
local counters = require("signalbox.counters")
local in_flight = require("signalbox.in_flight")

local format, sub = string.format, string.sub
local capture_multi = ngx.location.capture_multi

local _M = {}

local PARTS = { "pacemaker", "sidecar" }
local SOURCES = { { "/.signalbox/metrics/pacemaker" }, { "/.signalbox/metrics/sidecar" } }

-- name, type, help, function that gives the value.
local SAMPLES = {
    { "retries_total", "counter", "Tries after the first, at another instance.", function()
        return counters.get("retries")
    end },
    { "ejections_total", "counter", "Times an instance was taken out for failing.", circuits.ejections },
    { "held_total", "counter", "Requests that waited for their host to get an instance.", function()
        return counters.get("held")
    end },
    { "limited_total", "counter", "Requests refused by a limit of their host.", function()
        return counters.get("limited")
    end },
    { "in_flight", "gauge", "Requests under way at instances of hosts with a policy.", in_flight.sum },
}

local function samples()
    for i = 1, #SAMPLES do
        local name, kind, help, value = SAMPLES[i][1], SAMPLES[i][2], SAMPLES[i][3], SAMPLES[i][4]
        ngx.say("# HELP signalbox_edge_", name, " ", help, "\n# TYPE signalbox_edge_", name, " ", kind)
        ngx.say(format("signalbox_edge_%s %.0f", name, value()))
    end
end

local function own(answers)
    samples()
    local workers = ack.workers()
    ngx.say("# HELP signalbox_edge_worker_serial Serial of the route table that a worker has acknowledged.\n",
        "# TYPE signalbox_edge_worker_serial gauge")
    for i = 1, #workers do
        ngx.say(format('signalbox_edge_worker_serial{worker="%d"} %.0f', workers[i].worker, workers[i].serial))
    end
    ngx.say("# HELP signalbox_edge_worker_believed 1 while a worker is connected and believes the table it sees.\n",
        "# TYPE signalbox_edge_worker_believed gauge")
    for i = 1, #workers do
        ngx.say(format('signalbox_edge_worker_believed{worker="%d"} %d',
            workers[i].worker, workers[i].believed and 1 or 0))
    end
    ngx.say("# HELP signalbox_edge_part_up 1 when the part answered this scrape.\n# TYPE signalbox_edge_part_up gauge")
    for i = 1, #PARTS do
        ngx.say(format('signalbox_edge_part_up{part="%s"} %d', PARTS[i], answers[i].status == 200 and 1 or 0))
    end
end

function _M.serve()
    local method = ngx.req.get_method()
    if method ~= "GET" and method ~= "HEAD" then
        return answer.problem(405, "method_not_allowed", "This endpoint does not know that method.")
    end
    local answers = { capture_multi(SOURCES) }
    ngx.header["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
    own(answers)
    for i = 1, #PARTS do
        local body = answers[i].status == 200 and answers[i].body or ""
        ngx.print(body)
        if body ~= "" and sub(body, -1) ~= "\n" then
            ngx.say("")
        end
    end
end

return _M
