local explain = require("signalbox.explain")
local json = require("signalbox.json")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local A, B, C, D = "127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9004"

local function states(shown)
    local map = {}
    for _, one in ipairs(shown.instances) do
        map[one.address] = one.state
    end
    return map
end

return function(it)
    it("shows a host without a policy", function()
        local shown = json.decode(explain.host("a.b.test", "*.b.test", record.make("*.b.test", { B, A }, "17", nil)))
        equal({ shown.host, shown.matched, shown.plain, shown.algorithm, shown.fail_open, shown.worker },
            { "a.b.test", "*.b.test", true, "round_robin", false, 0 })
        equal(shown.instances[1], { address = A, version_type = "17", weight = 1, state = "in", until_ms = 0, times = 0,
            failures = 0, in_flight = 0 })
        equal(#shown.instances, 2)
    end)

    it("shows draining, unhealthy, weights and version types of a policy", function()
        local policy = ([[{"draining":["%s"],"unhealthy":["%s"],"weights":{"%s":2.5},"log_keys":{"%s":"18"},
            "balance":{"algorithm":"p2c"}}]]):format(A, B, C, C)
        local shown = json.decode(explain.host("x", "x", record.make("x", { A, B, C, D }, "17", policy)))
        equal(states(shown), { [A] = "draining", [B] = "unhealthy", [C] = "in", [D] = "in" })
        equal({ shown.plain, shown.algorithm, shown.fail_open }, { false, "p2c", false })
        equal({ shown.instances[3].weight, shown.instances[3].version_type }, { 2.5, "18" })
        shown = json.decode(explain.host("x", "x",
            record.make("x", { A, B }, "17", ([[{"unhealthy":["%s","%s"]}]]):format(A, B))))
        equal(shown.fail_open, true)
    end)

    it("shows an ejection with its end, and failures in a row", function()
        local route = record.make("x", { A, B, C }, "17", '{"ejection":{"first_ms":60000}}')
        for _ = 1, 2 do
            outliers.failed(route, B, "502")
        end
        for _ = 1, 5 do
            outliers.failed(route, A, "502")
        end
        local shown = json.decode(explain.host("x", "x", route))
        equal(states(shown), { [A] = "ejected", [B] = "in", [C] = "in" })
        truthy(shown.instances[1].until_ms > ngx.now() * 1000, "it ends in the future")
        equal({ shown.instances[1].times, shown.instances[2].failures }, { 1, 2 })
    end)
end
