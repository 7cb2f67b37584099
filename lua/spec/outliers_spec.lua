-- Ejection and the retry budget, with a clock that the spec sets.

local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local real_now = ngx.now
local clock = 1000
rawset(ngx, "now", function() return clock end)
package.loaded["signalbox.clock"] = { now = function() return clock end }
local budget = require("signalbox.budget")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")
rawset(ngx, "now", real_now)

local dict = ngx.shared.signalbox_outliers
local ports = 9000

-- New addresses each time, because the state of an address outlives a record.
local function hosts(n)
    local list = {}
    for i = 1, n do
        ports = ports + 1
        list[i] = "127.0.0.1:" .. ports
    end
    return list
end

local function fail(route, address, times)
    for _ = 1, times do
        outliers.failed(route, address, "test")
        dict:delete("lock:" .. address)
    end
end

-- Routes requests with the record.
local function serve(route, times)
    for _ = 1, times do
        record.plain_next(route)
    end
end

local function is_out(address)
    return outliers.any() and outliers.is_ejected(address)
end

local function advance(seconds)
    clock = clock + seconds
    outliers.any()
end

return function(it)
    math.randomseed(runner.seed)

    it("ejects at the fifth failure in a row, for one second", function()
        local list = hosts(3)
        local route = record.make("x", list, "1", nil)
        fail(route, list[1], 4)
        truthy(not is_out(list[1]), "four are not enough")
        fail(route, list[1], 1)
        truthy(is_out(list[1]), "out at the fifth")
        for _ = 1, 30 do
            truthy(outliers.pick(route) ~= list[1], "no request is sent there")
        end
        advance(1.2)
        truthy(not is_out(list[1]), "back after a second, give or take a tenth")
        truthy(outliers.restored_at(list[1]), "and known to have returned")
    end)

    it("lists the ejected instances, those that are out longest first, within a bound", function()
        local list = hosts(6)
        local route = record.make("x", list, "1", nil)
        fail(route, list[1], 5)
        advance(0.5)
        fail(route, list[2], 5)
        local found = outliers.list(9)
        equal({ #found, found[1][1], found[2][1] }, { 2, list[2], list[1] })
        truthy(found[1][2] > clock * 1000 and found[1][2] < clock * 1000 + 1101, "unix milliseconds of the end")
        equal({ #outliers.list(1), outliers.list(1)[1][1] }, { 1, list[2] })
        advance(1.2)
        equal(outliers.list(9), {})
    end)

    it("doubles the time of each further ejection, up to the longest", function()
        local list = hosts(2)
        local route = record.make("x", list, "1", '{"ejection":{"failures":3,"first_ms":1000,"longest_ms":3000}}')
        local lasts = {}
        fail(route, list[1], 3)
        for turn = 1, 4 do
            truthy(is_out(list[1]), "out, turn " .. turn)
            local till = outliers.describe(list[1]) / 1000
            lasts[turn] = till - clock
            advance(till - clock + 0.01)
            truthy(not is_out(list[1]), "back, turn " .. turn)
            fail(route, list[1], 2)
            truthy(not is_out(list[1]), "two failures are not enough, turn " .. turn)
            fail(route, list[1], 1)
        end
        for turn, wanted in ipairs({ 1, 2, 3, 3 }) do
            truthy(lasts[turn] > wanted * 0.89 and lasts[turn] < wanted * 1.11, turn .. ". time: " .. lasts[turn])
        end
    end)

    it("does not count failures that are far apart, or among successes", function()
        local list = hosts(3)
        local route = record.make("x", list, "1", nil)
        for _ = 1, 10 do
            fail(route, list[1], 1)
            advance(11)
        end
        truthy(not is_out(list[1]), "ten seconds in between")
        -- On the hot path: more than half of the requests since then did not fail.
        for _ = 1, 20 do
            fail(route, list[1], 1)
            serve(route, 3 * 5)
        end
        truthy(not is_out(list[1]), "one of five")
        -- Where a success is seen, it ends the row.
        local ruled = record.make("x", list, "1", "{}")
        for _ = 1, 10 do
            fail(ruled, list[2], 4)
            outliers.worked(list[2])
        end
        truthy(not is_out(list[2]), "four, then a success")
    end)

    it("counts successes across changes of a host, and of hosts that share the instance", function()
        local list = hosts(2)
        for _ = 1, 20 do
            fail(record.make("x", list, "1", nil), list[1], 1)
            local other = record.make("y", list, "1", nil)
            fail(other, list[1], 1)
            serve(other, 2 * 10)
        end
        truthy(not is_out(list[1]), "one of ten, however often the record changes")
        local x, y = record.make("x", list, "1", nil), record.make("y", list, "1", nil)
        for _ = 1, 3 do
            fail(x, list[2], 1)
            fail(y, list[2], 1)
        end
        truthy(is_out(list[2]), "failures under two names are in a row")
    end)

    it("counts failures of an instance that serves more hosts than a worker follows", function()
        local policy = '{"ejection":{"failures":40,"first_ms":1000,"longest_ms":3000}}'
        local function fail_everywhere(list, requests)
            local routes = {}
            for host = 1, 20 do
                routes[host] = record.make("h" .. host .. ".test", list, "1", policy)
            end
            -- Failures of hosts that are not followed do not count.
            for n = 1, 50 do
                local route = routes[n % 20 + 1]
                for _ = 1, requests do
                    route.served = (route.served or 0) + #list
                end
                fail(route, list[1], 1)
            end
        end
        local list = hosts(3)
        fail_everywhere(list, 1)
        truthy(is_out(list[1]), "it fails every request, of whichever host")
        list = hosts(3)
        fail_everywhere(list, 6)
        truthy(not is_out(list[1]), "five of six requests succeed")
    end)

    it("does not count failures among the successes of a host that is not followed", function()
        local policy = '{"ejection":{"failures":20,"first_ms":1000,"longest_ms":3000}}'
        local list = hosts(3)
        for host = 1, 16 do
            fail(record.make("h" .. host .. ".test", list, "1", policy), list[1], 1)
        end
        local other = record.make("other.test", list, "1", policy)
        for _ = 1, 10 do
            other.served = (other.served or 0) + 3 * 50
            fail(other, list[1], 1)
        end
        truthy(not is_out(list[1]), "one of fifty")
    end)

    it("forgets instances that were replaced, and their records", function()
        local records = setmetatable({}, { __mode = "k" })
        for _ = 1, 5000 do
            local list = hosts(2)
            local route = record.make("x", list, "1", nil)
            records[route] = true
            fail(route, list[1], 1)
        end
        collectgarbage()
        collectgarbage()
        local left = 0
        for _ in pairs(records) do
            left = left + 1
        end
        truthy(left <= 2048, left)
    end)

    it("shares a failure with other workers only if another one follows in a row", function()
        local list = hosts(2)
        local route = record.make("x", list, "1", nil)
        fail(route, list[1], 1)
        equal(dict:get("f:" .. list[1]), nil)
        fail(route, list[1], 1)
        equal(dict:get("f:" .. list[1]), 2)
        -- Two of another worker.
        dict:incr("f:" .. list[1], 2)
        fail(route, list[1], 1)
        truthy(is_out(list[1]), "out at the fifth of both")
    end)

    it("is not disturbed by a clock that is set back", function()
        local list = hosts(2)
        local route = record.make("x", list, "1", nil)
        fail(route, list[1], 5)
        local day = ngx.now
        rawset(ngx, "now", function() return clock - 3600 end)
        advance(1.2)
        truthy(not is_out(list[1]), "back after a second")
        rawset(ngx, "now", day)
    end)

    it("ejects an instance that fails half of its requests on the hot path", function()
        local list = hosts(3)
        local route = record.make("x", list, "1", nil)
        for _ = 1, 5 do
            fail(route, list[1], 1)
            serve(route, 3 * 2)
        end
        truthy(is_out(list[1]), "out")
    end)

    it("never ejects more than half, and fails open when other hosts' failures do", function()
        for n = 1, 9 do
            local list = hosts(n)
            local route = record.make("x", list, "1", nil)
            for i = 1, n do
                fail(route, list[i], 6)
            end
            local out = 0
            for i = 1, n do
                out = out + (is_out(list[i]) and 1 or 0)
            end
            equal(out, math.floor(n / 2), n .. " instances")
            -- The same addresses in a host that has only the failed ones and one more.
            if out > 1 then
                local few = { list[1], list[2], list[n] }
                local other = record.make("y", few, "1", nil)
                local seen = {}
                for _ = 1, 30 do
                    seen[outliers.pick(other)] = true
                end
                truthy(seen[list[1]] and seen[list[2]] and seen[list[n]], "all get requests again")
                equal(outliers.without(few, few), few)
            end
        end
    end)

    it("learns of other workers' ejections by the generation", function()
        local list = hosts(2)
        dict:set("e:" .. list[1], ("%d|1|5000"):format((clock + 5) * 1000))
        local generation = dict:incr("generation", 1, 0)
        dict:set("g:" .. generation, list[1])
        truthy(not outliers.is_ejected(list[1]), "not looked yet")
        clock = clock + 0.001
        truthy(is_out(list[1]), "out here too")
        advance(6)
        truthy(not is_out(list[1]), "and back")
    end)

    it("does nothing for a host that switched it off", function()
        local list = hosts(2)
        fail(record.make("x", list, "1", '{"ejection":false}'), list[1], 50)
        truthy(not is_out(list[1]), "still in")
    end)

    it("lets a burst of retries pass, then a part of the requests and a few per second", function()
        local route = record.make("x", hosts(2), "1", nil)
        local spent = 0
        while budget.has(route, record.served(route), 20) do
            budget.spend(route, record.served(route), 20)
            spent = spent + 1
        end
        equal(spent, 100)
        serve(route, 50)
        spent = 0
        while budget.has(route, record.served(route), 20) do
            budget.spend(route, record.served(route), 20)
            spent = spent + 1
        end
        equal(spent, 10)
        clock = clock + 1
        spent = 0
        while budget.has(route, record.served(route), 20) do
            budget.spend(route, record.served(route), 20)
            spent = spent + 1
        end
        equal(spent, 10)
        truthy(not budget.has(route, record.served(route), 0), "none at all for 0 percent")
        -- Retries that were allowed together, and used more than there was.
        for _ = 1, 50 do
            budget.spend(route, record.served(route), 20)
        end
        clock = clock + 4.9
        truthy(not budget.has(route, record.served(route), 20), "the debt is not paid")
        clock = clock + 0.3
        truthy(budget.has(route, record.served(route), 20), "it is")
    end)
end
