-- How often a request may be sent. balancer_spec and full_spec show it in requests; this spec has the rules one by one.

local budget = require("signalbox.budget")
local record = require("signalbox.record")
local runner = require("runner")
local tries = require("signalbox.tries")
local equal, truthy = runner.equal, runner.truthy

local function made(policy, n)
    local list = {}
    for i = 1, n or 4 do
        list[i] = "127.0.0.1:" .. 9000 + i
    end
    return record.make("x", list, "17", policy)
end

local function exhaust(route)
    while tries.in_budget(route) do
        budget.spend(route, record.served(route), 20)
    end
end

return function(it)
    it("allows one try per instance, or the number in the policy", function()
        equal(tries.max(made(nil)), 4)
        equal(tries.max(made("{}")), 4)
        equal(tries.max(made('{"retries":{"attempts":2}}')), 2)
        equal(tries.max(made('{"retries":{"attempts":9}}')), 4)
        equal(tries.max(made('{"draining":["127.0.0.1:9001"]}')), 3)
        equal(tries.max(made(nil, 1)), 1)
    end)

    it("allows another try while instances are left", function()
        local route = made(nil, 3)
        equal({ tries.another(route, 1), tries.another(route, 2), tries.another(route, 3) }, { true, true, false })
    end)

    it("allows only free tries when the budget is used up", function()
        local route = made(nil)
        exhaust(route)
        equal({ tries.another(route, 1), tries.another(route, 1, true), tries.another(route, 4, true) },
            { false, true, false })
        equal(tries.in_budget(made('{"retries":{"budget_percent":0}}')), false)
    end)

    it("earns budget with requests that are routed", function()
        local route = made(nil)
        exhaust(route)
        for _ = 1, 200 do
            record.plain_next(route)
        end
        truthy(tries.in_budget(route), "a part of 200 requests")
    end)

    it("allows no further try after the policy's time", function()
        local route = made('{"retries":{"timeout_ms":1}}')
        equal({ runner.within_request({}, function()
            runner.eventually("the time to be over", function() return tries.time_is_over(route) end)
            return tries.another(route, 1, true), tries.another(made('{"retries":{"timeout_ms":60000}}'), 1),
                tries.another(made(nil), 1)
        end) }, { false, true, true })
    end)


    it("knows the methods that may be repeated, and those for which nginx may be granted tries", function()
        local base = require("resty.core.base")
        for method, wanted in pairs({ GET = { true, true }, HEAD = { true, true }, PUT = { true, true },
            DELETE = { true, true }, OPTIONS = { true, true }, POST = { false, true }, PATCH = { false, true },
            LOCK = { false, true }, MKCOL = { false, false }, MOVE = { false, false }, PROPFIND = { false, false },
            CHARGE = { false, false } }) do
            equal({ runner.within_request({ method = method }, function()
                return tries.is_idempotent(), tries.may_grant(base.get_request()) == true
            end) }, wanted, method)
        end
    end)
end
