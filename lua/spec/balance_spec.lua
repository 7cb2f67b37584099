local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local function hosts(n)
    local list = {}
    for i = 1, n do
        list[i] = "127.0.0.1:" .. 9000 + i
    end
    return list
end

return function(it)
    it("gives every instance the same share", function()
        for n = 1, 7 do
            local route, seen = record.make("x", hosts(n), "1", nil), {}
            for _ = 1, n * 100 do
                local address = record.plain_next(route)
                seen[address] = (seen[address] or 0) + 1
            end
            for _, address in ipairs(hosts(n)) do
                equal(seen[address], 100, n .. " instances, " .. address)
            end
        end
    end)

    it("starts at a random instance", function()
        math.randomseed(runner.seed)
        local starts = {}
        for _ = 1, 200 do
            starts[record.plain_next(record.make("x", hosts(4), "1", nil))] = true
        end
        for _, address in ipairs(hosts(4)) do
            truthy(starts[address], "some record starts at " .. address)
        end
    end)

    it("continues after the last peer, around the end, at one that was not tried", function()
        local list = hosts(3)
        equal(round_robin.after(hosts(3), 1, 3, list[1], { [list[1]] = true }), list[2])
        equal(round_robin.after(hosts(3), 1, 3, list[3], { [list[3]] = true }), list[1])
        equal(round_robin.after(hosts(3), 1, 3, list[3], { [list[3]] = true, [list[1]] = true }), list[2])
        equal(round_robin.after(hosts(3), 1, 3, "gone", { gone = true }), list[1])
    end)

    it("returns to the next one when all were tried, and reports that", function()
        local list = hosts(3)
        local all = { [list[1]] = true, [list[2]] = true, [list[3]] = true }
        equal({ round_robin.after(list, 1, 3, list[1], all) }, { list[2], true })
        equal({ round_robin.after(list, 1, 3, list[1], { [list[1]] = true }) }, { list[2], false })
        equal({ round_robin.after({ list[1] }, 1, 1, list[1], all) }, { list[1], true })
    end)

    it("visits every instance once in a retry, from any start", function()
        local list = hosts(5)
        for start = 1, 5 do
            local last, tried = list[start], { [list[start]] = true }
            for _ = 2, 5 do
                last = round_robin.after(list, 1, 5, last, tried)
                truthy(last and not tried[last], "a new one")
                tried[last] = true
            end
            equal(select(2, round_robin.after(list, 1, 5, last, tried)), true)
        end
    end)
end
