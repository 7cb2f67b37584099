-- Questions to a real redis-server, over a link without follow.lua: the spec decides what is trusted.

local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local record = require("signalbox.record")
local redis = require("redis")
local routes = require("signalbox.routes")
local runner = require("runner")
local shared = require("signalbox.shared")
local equal, truthy = runner.equal, runner.truthy

local A, B = "127.0.0.1:9001", "127.0.0.1:9002"

local function addresses(name)
    local known = routes.known(name)
    if not known then
        return known
    end
    local list, from, to = record.addresses(known)
    return table.concat(list, " ", from, to)
end

-- Questions sent to Redis so far, as its own statistics count them.
local function asked()
    return tonumber(redis.call("INFO", "commandstats"):match("cmdstat_smembers:calls=(%d+)") or 0)
end

return function(it)
    it("asks nothing while the table is not trusted", function()
        redis.start()
        link.start(redis.address, { opened = function() end, lost = function() end, pushed = function() end })
        runner.eventually("the link to be connected", function() return link.connected end)
        equal({ lookups.ask("a.test"), lookups.wait({ "a.test" }, 1) }, { nil, false })
        equal(asked(), 0)
        lookups.trusted = true
    end)

    it("stores the parts of a name in the worker and in shared memory", function()
        redis.put("a.test", { B, A }, "17", '{"weights":{"127.0.0.1:9001":2}}')
        equal(lookups.wait({ "a.test", "none.test" }, 1), true)
        equal({ addresses("a.test"), addresses("none.test") }, { A .. " " .. B, false })
        equal(record.rules(routes.known("a.test")).weights, { [A] = 2 })
        truthy(shared.has("a.test"), "in shared memory")
        equal(shared.has("none.test"), false)
        equal(lookups.open, 0)
    end)

    it("sends one question for all requests that ask at the same time", function()
        redis.put("b.test", { A }, "17")
        local before, threads, results = asked(), {}, {}
        for i = 1, 20 do
            threads[i] = ngx.thread.spawn(function()
                results[i] = lookups.wait({ "b.test" }, 1)
            end)
        end
        equal(lookups.open, 1)
        for i = 1, 20 do
            assert(ngx.thread.wait(threads[i]))
            equal(results[i], true)
        end
        equal({ asked() - before, addresses("b.test") }, { 1, A })
    end)

    it("wakes requests that are held for the name", function()
        local held = require("signalbox.held")
        local woken
        local waiting = ngx.thread.spawn(function()
            held.wait(held.enter("held.test", "held.test"), 30)
            woken = true
        end)
        equal(woken, nil)
        lookups.wait({ "held.test" }, 1)
        assert(ngx.thread.wait(waiting))
        equal(woken, true)
    end)

    it("asks again when the name changes while the question is open", function()
        redis.put("c.test", { A }, "17")
        local before = asked()
        local entry = lookups.ask("c.test")
        lookups.touch("c.test")
        equal({ lookups.is_open("c.test"), entry.dirty }, { true, true })
        equal(lookups.wait({ "c.test" }, 1), true)
        equal({ asked() - before, addresses("c.test"), lookups.is_open("c.test") }, { 2, A, false })
    end)

    it("keeps a name that was written as another type, without instances", function()
        redis.call("SET", "instances:wrong.test", "text")
        equal(lookups.wait({ "wrong.test" }, 1), true)
        equal(addresses("wrong.test"), "")
        redis.call("SADD", "logkey:list.test", "x")
        redis.call("SADD", "instances:list.test", A)
        equal(lookups.wait({ "list.test" }, 1), true)
        equal({ addresses("list.test"), record.log_key(routes.known("list.test")) }, { A, "null" })
    end)

    it("stores nothing when Redis answers with an error", function()
        redis.put("d.test", { A }, "17")
        redis.call("ACL", "SETUSER", "default", "-smembers")
        equal(lookups.wait({ "d.test" }, 1), false)
        equal(addresses("d.test"), nil)
        redis.call("ACL", "SETUSER", "default", "+smembers")
        equal(lookups.wait({ "d.test" }, 1), true)
        equal(addresses("d.test"), A)
    end)

    it("stores nothing when trust is lost before the answer", function()
        redis.put("e.test", { A }, "17")
        local entry = lookups.ask("e.test")
        lookups.trusted = false
        runner.eventually("the answer", function() return not lookups.is_open("e.test") end)
        equal({ entry.failed, addresses("e.test"), lookups.open }, { true, nil, 0 })
        lookups.trusted = true
    end)

    it("stops waiting at the timeout, and still accepts the late answer", function()
        redis.put("f.test", { A }, "17")
        redis.call("CLIENT", "PAUSE", "100", "ALL")
        equal(lookups.wait({ "f.test" }, 0.01), false)
        runner.eventually("the late answer", function() return addresses("f.test") == A, addresses("f.test") end)
    end)

    it("reports each answer, for the sweep", function()
        local names = {}
        lookups.answered = function(entry) names[#names + 1] = entry.name end
        lookups.wait({ "g.test" }, 1)
        equal(names, { "g.test" })
    end)

    it("fails all questions when the connection is lost", function()
        redis.call("CLIENT", "PAUSE", "10000", "ALL")
        local entry = lookups.ask("h.test")
        redis.crash()
        runner.eventually("the question to fail", function() return entry.failed end)
        equal({ routes.known("h.test"), lookups.open }, { nil, 0 })
    end)
end
