-- The policy's decisions about instances, as record.make computes it.

local candidates = require("signalbox.candidates")
local record = require("signalbox.record")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local A, B, C, D = "127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9004"

local function made(policy)
    return record.make("x", { A, B, C, D }, "17", policy)
end

local function list_of(list)
    return table.concat(list, " ")
end

return function(it)
    it("leaves out draining, unhealthy and weightless instances, and keeps those usable that do not drain", function()
        local one = made(([[{"draining":["%s"],"unhealthy":["%s"],"weights":{"%s":0}}]]):format(A, B, C))
        equal(list_of(one.usable), list_of({ B, C, D }))
        equal(list_of(one.candidates), D)
        equal({ one.fail_open, one.weightless }, { false, false })
    end)

    it("does not let health checks remove more than half", function()
        local half = made(([[{"unhealthy":["%s","%s"]}]]):format(A, B))
        equal({ list_of(half.candidates), half.fail_open }, { list_of({ C, D }), false })
        local more = made(([[{"unhealthy":["%s","%s","%s"]}]]):format(A, B, C))
        equal({ list_of(more.candidates), more.fail_open }, { list_of({ A, B, C, D }), true })
    end)

    it("ignores weights that are all 0, and does not call equal weights uneven", function()
        local none = made(([[{"weights":{"%s":0,"%s":0,"%s":0,"%s":0}}]]):format(A, B, C, D))
        equal({ #none.candidates, none.weightless, none.weighted }, { 4, true, false })
        equal(made(([[{"weights":{"%s":2,"%s":2,"%s":2,"%s":2}}]]):format(A, B, C, D)).weighted, false)
        equal(made(([[{"weights":{"%s":2}}]]):format(A)).weighted, true)
    end)

    it("groups the candidates by version type when there are shares", function()
        local one = made(([[{"log_keys":{"%s":"18","%s":"18"},"draining":["%s"],
            "shares":[{"version_type":"17","percent":50},{"version_type":"18","percent":50}]}]]):format(C, D, D))
        equal(list_of(one.groups["17"]), list_of({ A, B }))
        equal(list_of(one.groups["18"]), C)
        for _, group in pairs(one.groups) do
            truthy(group.cursor >= 1 and group.cursor <= #group, "a cursor inside the group")
        end
        equal(made("{}").groups, nil)
    end)

    it("lets the hot path serve a host exactly when its policy needs nothing else", function()
        for policy, wanted in pairs({ ["{}"] = true, ['{"weights":{"127.0.0.1:9001":2}}'] = true,
            ['{"balance":{"algorithm":"hash","address":true}}'] = true, ['{"balance":{"algorithm":"p2c"}}'] = true,
            ['{"sticky":{}}'] = false, ['{"timeouts":{"read_ms":1}}'] = false, ['{"methods":["GET"]}'] = false,
            ['{"upstream":{"tls":true}}'] = false, ['{"upstream":{"protocol":"grpc"}}'] = false,
            ['{"headers":{"response":{"set":{"X-A":"b"}}}}'] = false }) do
            equal(made(policy).light, wanted, policy)
        end
        equal(record.make("x", { A }, "17", ([[{"draining":["%s"]}]]):format(A)).light, false)
    end)

    it("counts requests in flight for p2c only", function()
        equal({ made('{"balance":{"algorithm":"p2c"}}').counted, made("{}").counted }, { true, false })
    end)

    it("knows when the last slow start ends", function()
        equal(made(([[{"joined":{"%s":1000,"%s":3000},"slow_start_ms":500}]]):format(A, B)).slow_until, 3500)
        equal(made(([[{"joined":{"%s":1000}}]]):format(A)).slow_until, 0)
        -- A draining instance gets no requests, so its slow start does not matter.
        equal(made(([[{"joined":{"%s":1000,"%s":3000},"slow_start_ms":500,"draining":["%s"]}]]):format(A, B, B))
            .slow_until, 1500)
    end)

    it("fills a record that has no instance at all", function()
        local empty = record.make("x", {}, "17", nil)
        equal({ #empty.usable, #empty.candidates, empty.light }, { 0, 0, false })
        truthy(candidates.fill, "the module is the one under test")
    end)
end
