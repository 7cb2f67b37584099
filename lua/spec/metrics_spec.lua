-- The /metrics page. The pacemaker of the specs' nginx answers, its sidecar does not.

local ack = require("signalbox.ack")
local app = require("app")
local client = require("client")
local counters = require("signalbox.counters")
local runner = require("runner")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

require("signalbox.metrics")

local function page(method)
    return client.request({ socket = "admin", path = "/metrics", method = method })
end

return function(it)
    it("shows the edge's own metrics, and each daemon's that answers, as one page", function()
        runner.expect_error("sidecar.sock failed (2: No such file or directory)")
        ack.join()
        ack.publish(42, 42, "aa", true)
        counters.add("retries")
        counters.add("retries")
        app.behavior.pacemaker = function()
            ngx.print("# TYPE signalbox_test gauge\nsignalbox_test 1\n# EOF\n")
        end
        local response = page()
        equal({ response.status, response.headers["content-type"] },
            { 200, "application/openmetrics-text; version=1.0.0; charset=utf-8" })
        for _, line in ipairs({ "signalbox_edge_retries_total 2", "signalbox_edge_ejections_total 0",
            "signalbox_edge_in_flight 0", 'signalbox_edge_worker_serial{worker="0"} 42',
            'signalbox_edge_worker_accepted{worker="0"} 1', 'signalbox_edge_part_up{part="pacemaker"} 1',
            'signalbox_edge_part_up{part="sidecar"} 0', "signalbox_test 1" }) do
            contains(response.body, "\n" .. line .. "\n")
        end
        local _, ends = response.body:gsub("# EOF", "")
        equal({ ends, response.body:sub(-6) }, { 1, "# EOF\n" })
    end)

    it("gives every family a type, and every counter the suffix that OpenMetrics demands", function()
        runner.expect_error("sidecar.sock failed")
        local types = {}
        for line in page().body:gmatch("[^\n]+") do
            local family, kind = line:match("^# TYPE (%S+) (%S+)$")
            if family then
                types[family] = kind
            elseif line:sub(1, 1) ~= "#" then
                local name = line:match("^[%w_]+")
                truthy(types[name] == "gauge" or types[name:gsub("_total$", "")] == "counter", line)
            end
        end
    end)

    it("ends a daemon's last line", function()
        runner.expect_error("sidecar.sock failed")
        app.behavior.pacemaker = function()
            ngx.print("signalbox_test 1")
        end
        contains(page().body, "\nsignalbox_test 1\n# EOF\n")
    end)

    it("serves a page of any size", function()
        runner.expect_error("sidecar.sock failed")
        app.behavior.pacemaker = function()
            for i = 1, 3000 do
                ngx.say('signalbox_test{queue="', ("%060d"):format(i), '"} 1')
            end
            ngx.say("# EOF")
        end
        local body = page().body
        contains(body, '\nsignalbox_test{queue="' .. ("%060d"):format(3000) .. '"} 1\n# EOF\n')
        truthy(#body > 240000, "every line")
    end)

    it("leaves out a page that ends halfway", function()
        runner.expect_error("sidecar.sock failed")
        runner.expect_error("prematurely closed")
        app.behavior.pacemaker = function()
            ngx.header["Content-Length"] = 100
            ngx.print("signalbox_test 1\nsignalbox_te")
            ngx.flush(true)
            ngx.exit(444)
        end
        local body = page().body
        equal({ body:find("signalbox_te", 1, true), body:sub(-6) }, { nil, "# EOF\n" })
        contains(body, 'signalbox_edge_part_up{part="pacemaker"} 0')
    end)

    it("rejects other methods", function()
        local response = page("POST")
        equal({ response.status, response.headers["x-signalbox-error"] }, { 405, "method_not_allowed" })
        equal(response.headers.allow, "GET, HEAD")
    end)
end
