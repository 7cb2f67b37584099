-- /metrics of the admin listener: what the edge knows of itself, then the daemons' own texts one after the other. A
-- daemon that does not answer costs its lines, never the whole page.

local ack = require("signalbox.ack")
local answer = require("signalbox.answer")

local format, sub = string.format, string.sub
local capture_multi = ngx.location.capture_multi

local _M = {}

local PARTS = { "pacemaker", "sidecar" }
local SOURCES = { { "/.signalbox/metrics/pacemaker" }, { "/.signalbox/metrics/sidecar" } }

local function own(answers)
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
