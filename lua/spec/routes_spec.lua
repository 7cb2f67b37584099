-- The route cache: the rules of lookup, and a model without tables, suspects or generations.

local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local bounded = require("signalbox.bounded")
local equal, truthy = runner.equal, runner.truthy

local function make(port, log_key, policy)
    return record.make("x", port and { "127.0.0.1:" .. port } or {}, log_key, policy)
end

local function put_all(names)
    for name, value in pairs(names) do
        routes.put(name, value)
    end
end

-- "port" of the instance that serves host, "none", "unknown a,b" (the names to ask) or "suspect port".
local function outcome(host)
    local ask = {}
    local value, other = routes.find(host, ask)
    local function port(found)
        local list, from = record.usable(found)
        return list[from] and list[from]:match("%d+$") or "empty"
    end
    if value == false then
        return "none"
    elseif value then
        return port(value)
    end
    return other and "suspect " .. port(other) or "unknown " .. table.concat(ask, ",")
end

return function(it)
    it("asks for every unknown name up to the first one that decides", function()
        equal(outcome("a.b.test"), "unknown a.b.test,*.b.test,*.test,*")
        routes.put("*.b.test", make(1))
        equal(outcome("a.b.test"), "unknown a.b.test")
        routes.put("a.b.test", false)
        equal(outcome("a.b.test"), "1")
    end)

    it("lets the most specific existing name decide", function()
        put_all({ ["c.test"] = false, ["*.test"] = make(2), ["*"] = make(3), ["d.test"] = make(nil, "17") })
        equal(outcome("c.test"), "2")
        equal(outcome("d.test"), "empty")
        put_all({ ["e.zz"] = false, ["*.zz"] = false })
        equal(outcome("e.zz"), "3")
        routes.put("*", false)
        equal(outcome("e.zz"), "none")
    end)

    it("drops an exact name, and everything that a wildcard decided", function()
        put_all({ ["f.test"] = make(4), ["*.test"] = make(2) })
        routes.wild:set("g.test", make(2))
        truthy(routes.drop("f.test"), "there was a record")
        equal(outcome("f.test"), "unknown f.test")
        truthy(routes.wild.young["g.test"], "another host keeps its answer")
        routes.drop("*.test")
        equal(routes.wild.young["g.test"], nil)
    end)

    it("serves suspects until they are asked again, but no absences", function()
        put_all({ ["h.test"] = make(5), ["i.test"] = false, ["*.test"] = make(2) })
        routes.suspect_all()
        equal(routes.plain["h.test"], nil)
        equal(outcome("h.test"), "suspect 5")
        equal(outcome("i.test"):match("^unknown i.test"), "unknown i.test")
        routes.put("h.test", make(6))
        equal(outcome("h.test"), "6")
        routes.suspect_all()
        equal(outcome("h.test"), "suspect 6")
        equal(outcome("*.test" and "i.test"):match("^unknown"), "unknown")
    end)

    it("bounds the names that any client may invent", function()
        local map = bounded.new(100)
        for i = 1, 100000 do
            map:set("n" .. i, true)
        end
        local held = 0
        for _ in pairs(map.young) do held = held + 1 end
        for _ in pairs(map.old) do held = held + 1 end
        truthy(held <= 200, "held " .. held)
        truthy(map:get("n100000"), "the newest is there")
        for i = 1, 20000 do
            routes.put("flood" .. i .. ".test", false)
        end
        equal(outcome("h.test"), "suspect 6")
    end)

    it("keeps names that are used during a flood of others", function()
        local map = bounded.new(10)
        map:set("used", 1)
        for i = 1, 1000 do
            map:set("n" .. i, 1)
            truthy(map:get("used"), "after " .. i)
        end
    end)

    it("agrees with a model under random changes, pushes, interruptions and sweeps", function()
        math.randomseed(runner.seed)
        package.loaded["signalbox.routes"] = nil
        routes = require("signalbox.routes")
        local NAMES = { "a.b.t", "c.b.t", "b.t", "t", "*.b.t", "*.t", "*" }
        local HOSTS = { "a.b.t", "c.b.t", "b.t", "t", "z.t", "q.z.t" }
        local truth, changes = {}, 0
        -- The answer of Redis, computed in the simplest way.
        local function want(host)
            local name, rest = host, host
            while name do
                if truth[name] then
                    return truth[name]
                end
                if rest == "" then
                    break
                end
                rest = rest:match("%.(.*)$") or ""
                name = rest == "" and "*" or "*." .. rest
            end
            return "none"
        end
        local function answer(name)
            routes.put(name, truth[name] and make(truth[name]) or false)
        end
        for _ = 1, 20000 do
            local dice = math.random(10)
            local name = NAMES[math.random(#NAMES)]
            if dice <= 3 then
                changes = changes + 1
                truth[name] = math.random(2) == 1 and tostring(10000 + changes) or nil
                routes.drop(name)
            elseif dice == 4 then
                routes.suspect_all()
            else
                local host = HOSTS[math.random(#HOSTS)]
                local got = outcome(host)
                if got:find("^suspect") then
                    -- Known from before an interruption; nothing changed in it here, so it must still be right.
                    equal(got, "suspect " .. want(host))
                end
                local rounds = 0
                while got:find("^unknown") or got:find("^suspect") do
                    rounds = rounds + 1
                    truthy(rounds <= 3, "answers settle a host")
                    local ask = {}
                    routes.find(host, ask)
                    for i = 1, #ask do
                        answer(ask[i])
                    end
                    got = outcome(host)
                end
                equal(got, want(host), "host " .. host)
            end
            local fresh = 0
            for _, kind in ipairs({ "plain", "special", "wildcards" }) do
                for _ in pairs(routes[kind]) do
                    fresh = fresh + 1
                end
            end
            equal(routes.hosts, fresh, "hosts counted")
            truthy(routes.suspects >= 0, "suspects counted")
        end
    end)
end
