-- The distributions of the algorithms. Random choices are seeded. The bounds are wide enough that a correct algorithm
-- fails less than once in a million runs, and narrow enough that a wrong one always fails.

local hash = require("signalbox.balance.hash")
local p2c = require("signalbox.balance.p2c")
local runner = require("runner")
local shares = require("signalbox.balance.shares")
local slow_start = require("signalbox.balance.slow_start")
local weighted = require("signalbox.balance.weighted")
local equal, truthy = runner.equal, runner.truthy

local function hosts(n)
    local list = {}
    for i = 1, n do
        list[i] = "10.0." .. math.floor(i / 250) .. "." .. i % 250 .. ":9000"
    end
    return list
end

local function one()
    return 1
end

-- How often each address is picked in `n` calls.
local function counts(n, pick)
    local seen = {}
    for i = 1, n do
        local picked = pick(i)
        seen[picked] = (seen[picked] or 0) + 1
    end
    return seen
end

-- Fails unless `seen` of `n` is within six standard deviations of `part`.
local function near(seen, n, part, what)
    local wanted, deviation = n * part, math.sqrt(n * part * (1 - part))
    truthy(math.abs((seen or 0) - wanted) <= 6 * deviation + 1,
        what .. ": " .. (seen or 0) .. " where " .. wanted .. " were expected, seed " .. runner.seed)
end

return function(it)
    math.randomseed(runner.seed)

    it("weighted round robin follows the weights exactly in every turn", function()
        for _ = 1, 50 do
            local list, weights, total = hosts(math.random(6)), {}, 0
            for i = 1, #list do
                weights[list[i]] = math.random(5)
                total = total + weights[list[i]]
            end
            local gained = {}
            for _ = 1, 3 do
                local seen = counts(total, function()
                    return weighted.pick(list, gained, function(address) return weights[address] end)
                end)
                equal(seen, weights, "one turn")
            end
        end
    end)

    it("weighted round robin spreads out the turns of a heavy instance", function()
        local weights, gained, order = { a = 5, b = 1, c = 1 }, {}, {}
        for i = 1, 7 do
            order[i] = weighted.pick({ "a", "b", "c" }, gained, function(address) return weights[address] end)
        end
        equal(table.concat(order), "aabacaa")
    end)

    it("weighted round robin sends nothing to weight 0", function()
        local seen = counts(100, function()
            return weighted.pick({ "a", "b" }, {}, function(address) return address == "a" and 0 or 2 end)
        end)
        equal(seen, { b = 100 })
    end)

    it("p2c is even while no request is in flight, with and without weights", function()
        local list = hosts(5)
        local function idle() return 0 end
        local seen = counts(20000, function() return p2c.pick(list, idle) end)
        for i = 1, 5 do
            near(seen[list[i]], 20000, 1 / 5, list[i])
        end
        local function weight(address) return address == list[1] and 4 or 1 end
        seen = counts(20000, function() return p2c.pick_weighted(list, idle, weight) end)
        near(seen[list[1]], 20000, 4 / 8, "the heavy one")
        near(seen[list[2]], 20000, 1 / 8, "a light one")
    end)

    it("p2c never picks the busier of two, and so never the busiest of all", function()
        local busy = {}
        for i, address in ipairs(hosts(6)) do
            busy[address] = i
        end
        local function count(address) return busy[address] end
        local seen = counts(5000, function() return p2c.pick(hosts(6), count) end)
        equal(seen[hosts(6)[6]], nil)
        -- The least busy one wins each draw that it is in: 1 - C(5,2)/C(6,2).
        near(seen[hosts(6)[1]], 5000, 1 / 3, "the idlest")
        seen = counts(5000, function() return p2c.pick_weighted(hosts(6), count, one) end)
        equal(seen[hosts(6)[6]], nil)
        near(seen[hosts(6)[1]], 5000, 1 / 3, "the idlest, by weight")
    end)

    it("p2c keeps requests from piling up at a slow instance", function()
        -- One request per turn; the slow instance needs 20 turns where the others need 2.
        local list, under_way, ends = hosts(4), {}, {}
        for turn = 1, 4000 do
            for address, list_of in pairs(ends) do
                while list_of[1] and list_of[1] <= turn do
                    table.remove(list_of, 1)
                    under_way[address] = under_way[address] - 1
                end
            end
            local address = p2c.pick(list, function(one_of) return under_way[one_of] or 0 end)
            under_way[address] = (under_way[address] or 0) + 1
            ends[address] = ends[address] or {}
            table.insert(ends[address], turn + (address == list[1] and 20 or 2))
        end
        truthy((under_way[list[1]] or 0) <= 5, "under way at the slow one: " .. (under_way[list[1]] or 0))
    end)

    it("hash sends a key always to the same instance, and keys evenly to all", function()
        local list = hosts(7)
        local seeds = hash.seeds(list)
        local seen = counts(20000, function(i)
            local address = hash.pick(list, seeds, "user-" .. i)
            equal(hash.pick(list, seeds, "user-" .. i), address)
            return address
        end)
        for i = 1, 7 do
            near(seen[list[i]], 20000, 1 / 7, list[i])
        end
    end)

    it("hash does not depend on the order of the instances", function()
        local list, reversed = hosts(9), {}
        for i = 1, 9 do
            reversed[i] = list[10 - i]
        end
        for i = 1, 500 do
            equal(hash.pick(list, hash.seeds(list), "k" .. i), hash.pick(reversed, hash.seeds(reversed), "k" .. i))
        end
    end)

    it("hash moves only the keys of a removed instance, evenly to all others", function()
        local list = hosts(10)
        local seeds = hash.seeds(list)
        local gone = math.random(10)
        local rest = {}
        for i = 1, 10 do
            rest[#rest + 1] = i ~= gone and list[i] or nil
        end
        local moved, to = 0, {}
        for i = 1, 20000 do
            local before = hash.pick(list, seeds, "key" .. i)
            local after = hash.pick(rest, seeds, "key" .. i)
            if before == list[gone] then
                moved = moved + 1
                to[after] = (to[after] or 0) + 1
            else
                equal(after, before, "a key of another instance")
            end
        end
        near(moved, 20000, 1 / 10, "moved")
        for i = 1, 9 do
            near(to[rest[i]], moved, 1 / 9, "taken over by " .. rest[i])
        end
    end)

    it("hash follows the weights, and a growing weight only takes keys", function()
        local list = hosts(5)
        local seeds = hash.seeds(list)
        local heavy = 1
        local function weight(address) return address == list[1] and heavy or 1 end
        local before = {}
        for i = 1, 10000 do
            before[i] = hash.pick_weighted(list, seeds, "w" .. i, weight)
        end
        heavy = 3
        local taken = 0
        for i = 1, 10000 do
            local after = hash.pick_weighted(list, seeds, "w" .. i, weight)
            taken = taken + (after == list[1] and 1 or 0)
            truthy(after == before[i] or after == list[1], "a key moved between others")
        end
        near(taken, 10000, 3 / 7, "the heavy one")
    end)

    it("shares follow the percentages, and one without instances is divided in proportion", function()
        local list = { { "17", 90 }, { "18", 8 }, { "19", 2 } }
        local seen = counts(50000, function()
            return shares.pick(list, { ["17"] = {}, ["18"] = {}, ["19"] = {} }, math.random())
        end)
        near(seen["17"], 50000, 0.9, "17")
        near(seen["18"], 50000, 0.08, "18")
        near(seen["19"], 50000, 0.02, "19")
        seen = counts(50000, function() return shares.pick(list, { ["18"] = {}, ["19"] = {} }, math.random()) end)
        near(seen["18"], 50000, 0.8, "18 of the rest")
        equal(seen["17"], nil)
        equal(shares.pick(list, {}, 0.5), nil)
        -- A share of 0% is never picked.
        for _, dice in ipairs({ 0, 0.5, 0.999999999 }) do
            equal(shares.pick({ { "a", 0 }, { "b", 100 }, { "c", 0 } }, { a = {}, b = {}, c = {} }, dice), "b")
        end
    end)

    it("hash picks the instances that the pacemaker names in explain", function()
        -- The same list is in choice/hash.rs; change both together.
        local list, even, weighed = { "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3" }, {}, {}
        local seeds, weights = hash.seeds(list), { [list[1]] = 5, [list[2]] = 1, [list[3]] = 2 }
        for i = 0, 7 do
            even[i + 1] = hash.pick(list, seeds, "user " .. i):sub(-1)
            weighed[i + 1] = hash.pick_weighted(list, seeds, "user " .. i, function(address)
                return weights[address]
            end):sub(-1)
        end
        equal({ table.concat(even), table.concat(weighed) }, { "33213112", "33113112" })
    end)

    it("slow start grows linearly from 10% to 100%", function()
        local factor = slow_start.factor
        equal({ factor(nil, 5, 10), factor(1000, 900, 1000), factor(1000, 1000, 1000), factor(1000, 1500, 1000),
            factor(1000, 2000, 1000), factor(1000, 9000, 1000) }, { 1, 0.1, 0.1, 0.5, 1, 1 })
        local last = 0
        for age = 0, 1000, 10 do
            local now = factor(1000, 1000 + age, 1000)
            truthy(now >= last, "it never goes back")
            last = now
        end
    end)
end
