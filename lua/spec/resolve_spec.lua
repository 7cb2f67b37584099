-- Which level answers for a host: the worker's cache, Redis (a real one), the last good table.

local follow = require("signalbox.follow")
local lookups = require("signalbox.lookups")
local record = require("signalbox.record")
local redis = require("redis")
local resolve = require("signalbox.resolve")
local routes = require("signalbox.routes")
local runner = require("runner")
local shared = require("signalbox.shared")
local equal = runner.equal

local function make(name, port)
    return record.make(name, { "127.0.0.1:" .. port }, "17", nil)
end

-- "port name" of what serves the host, "none", or "unknown".
local function outcome(host)
    local route, name = resolve.host(host)
    if not route then
        return route == false and "none" or "unknown"
    end
    local list, from = record.addresses(route)
    return list[from]:match("%d+$") .. " " .. name
end

return function(it)
    it("does not know a host without Redis and without a last good record", function()
        equal(outcome("a.test"), "unknown")
    end)

    it("falls back on the last good record, its wildcard included, and caches it", function()
        shared.put("good.test", make("good.test", 1))
        shared.put("*.good.test", make("*.good.test", 2))
        shared.put_alias("x.good.test", "*.good.test")
        equal(outcome("good.test"), "1 good.test")
        equal(outcome("x.good.test"), "2 *.good.test")
        shared.put("good.test", false)
        equal(outcome("good.test"), "1 good.test")
    end)

    it("asks Redis for every name that can match, and takes the most specific", function()
        redis.start()
        redis.call("SET", "serial", "1")
        redis.put("*.b.test", { "127.0.0.1:3" }, "17")
        redis.put("exact.b.test", { "127.0.0.1:4" }, "17")
        follow.start(redis.address)
        -- The request waits for trust, so the spec does not have to.
        equal(outcome("a.b.test"), "3 *.b.test")
        equal(outcome("exact.b.test"), "4 exact.b.test")
        equal(outcome("none.test"), "none")
    end)

    it("answers from the cache without Redis", function()
        local open = lookups.open
        lookups.trusted = false
        equal(outcome("exact.b.test"), "4 exact.b.test")
        equal(lookups.open, open)
        lookups.trusted = true
    end)

    it("serves a suspect record and asks for it in the background", function()
        routes.suspect_all()
        equal(outcome("exact.b.test"), "4 exact.b.test")
        equal(lookups.is_open("exact.b.test"), true)
        runner.eventually("the record to be fresh", function() return routes.plain["exact.b.test"] end)
    end)
end
