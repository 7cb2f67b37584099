-- /metrics of the admin listener: what the edge knows of itself, then the texts of the daemons one after the other, as
-- one page of OpenMetrics. A daemon that does not answer costs its lines, never the whole page.

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

-- family, type, help, function that gives the value. Samples of a counter are called <family>_total.
local SAMPLES = {
    { "retries", "counter", "Tries after the first, at another instance.", function()
        return counters.get("retries")
    end },
    { "ejections", "counter", "Times an instance was taken out for failing.", outliers.ejections },
    { "held", "counter", "Requests that waited for their host to get an instance.", function()
        return counters.get("held")
    end },
    { "limited", "counter", "Requests refused by a limit of their host.", function()
        return counters.get("limited")
    end },
    { "in_flight", "gauge", "Requests under way where a policy has them counted.", in_flight.sum },
}

local function samples()
    for i = 1, #SAMPLES do
        local name, kind, help, value = SAMPLES[i][1], SAMPLES[i][2], SAMPLES[i][3], SAMPLES[i][4]
        ngx.say("# HELP signalbox_edge_", name, " ", help, "\n# TYPE signalbox_edge_", name, " ", kind)
        ngx.say(format("signalbox_edge_%s%s %.0f", name, kind == "counter" and "_total" or "", value()))
    end
end

-- Requests under way at the edge as nginx counts them, of any host: reading and writing; waiting is keep-alive.
local function connections()
    ngx.say("# HELP signalbox_edge_connections Connections of clients, by what they do.\n",
        "# TYPE signalbox_edge_connections gauge")
    local var = ngx.var
    for _, state in ipairs({ "reading", "writing", "waiting" }) do
        ngx.say(format('signalbox_edge_connections{state="%s"} %s', state, var["connections_" .. state]))
    end
end

-- The text of a daemon without the mark that ends a page.
local function lines_of(body)
    local last = find(body, "# EOF", 1, true)
    body = last and sub(body, 1, last - 1) or body
    return (body == "" or sub(body, -1) == "\n") and body or body .. "\n"
end

local function own(answers)
    samples()
    connections()
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
    ngx.header["Content-Type"] = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    own(answers)
    for i = 1, #PARTS do
        if answers[i].status == 200 then
            ngx.print(lines_of(answers[i].body))
        end
    end
    ngx.say("# EOF")
end

return _M
