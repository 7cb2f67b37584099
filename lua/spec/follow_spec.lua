-- The worker's view of the table, with a real redis-server as its replica.

local ack = require("signalbox.ack")
local follow = require("signalbox.follow")
local held = require("signalbox.held")
local lookups = require("signalbox.lookups")
local record = require("signalbox.record")
local redis = require("redis")
local routes = require("signalbox.routes")
local runner = require("runner")
local shared = require("signalbox.shared")
local equal, truthy = runner.equal, runner.truthy

local function port_of(name)
    local value = routes.known(name)
    if not value then
        return tostring(value)
    end
    local list, from, to = record.addresses(value)
    return to >= from and list[from]:match("%d+$") or "empty"
end

local function eventually_port(name, port)
    runner.eventually(name .. " to lead to " .. port, function()
        return port_of(name) == port, port_of(name)
    end)
end

-- Waits until the worker has acknowledged the serial that Redis has now.
local function acknowledged()
    local serial = tonumber(redis.call("GET", "serial"))
    runner.eventually("serial " .. serial .. " to be acknowledged", function()
        return ack.workers()[1].serial == serial, ack.workers()[1]
    end)
end

local function put(name, port)
    redis.put(name, port and { "127.0.0.1:" .. port } or {}, port and "17")
end

local function trusted()
    runner.eventually("the table to be trusted", function()
        return lookups.trusted, { follow.state() }
    end)
end

local function alarm(wanted)
    runner.eventually("the alarm " .. tostring(wanted), function()
        local present = follow.state()
        return present == wanted, present
    end)
end

return function(it)
    it("trusts a table and acknowledges its serial", function()
        ack.join()
        redis.start()
        redis.call("MSET", "epoch", "aa", "serial", "10")
        put("a.test", 1)
        follow.start(redis.address)
        trusted()
        acknowledged()
        equal({ shared.accepted_table() }, { "aa", 11 })
        equal(ack.workers()[1].accepted, true)
        lookups.wait({ "a.test", "none.test" }, 1)
        equal({ port_of("a.test"), port_of("none.test") }, { "1", "false" })
    end)

    it("applies a change of a name in use, and acknowledges it afterwards", function()
        for port = 2, 40 do
            put("a.test", port)
            acknowledged()
            equal(port_of("a.test"), tostring(port))
        end
        put("a.test", nil)
        acknowledged()
        equal(port_of("a.test"), "false")
        put("a.test", 1)
        put("none.test", 5)
        acknowledged()
        -- An absent name is not in use: it is forgotten, and asked for by the next request.
        equal(port_of("none.test"), "nil")
        lookups.wait({ "a.test" }, 1)
        equal(port_of("a.test"), "1")
    end)

    it("never acknowledges a change before it is applied", function()
        -- Every change counts up the port together with the serial, so the two can be compared at an acknowledgement.
        -- The second change of a pair reaches Redis at about the time when the worker asks for the serial of the first.
        local offset = tonumber(redis.call("GET", "serial")) - 10000
        local publish, checked, stale = ack.publish, 0, nil
        ack.publish = function(serial, ...)
            local port = serial and tonumber(port_of("a.test"))
            if port then
                checked = checked + 1
                stale = port < serial - offset and { port, serial - offset } or stale
            end
            return publish(serial, ...)
        end
        local port = 10000
        local function send_change()
            port = port + 1
            redis.send("MULTI")
            redis.send("DEL", "instances:a.test")
            redis.send("SADD", "instances:a.test", "127.0.0.1:" .. port)
            redis.send("INCR", "serial")
            redis.send("EXEC")
        end
        for pair = 1, 600 do
            send_change()
            for _ = 1, pair % 6 do
                ngx.sleep(0)
            end
            send_change()
            redis.receive(10)
            acknowledged()
            lookups.wait({ "a.test" }, 1)
        end
        ack.publish = publish
        equal(stale, nil, "port of the record, port of the acknowledged serial")
        truthy(checked > 10, "acknowledgements while the record was known: " .. checked)
        put("a.test", 1)
        acknowledged()
        eventually_port("a.test", "1")
    end)

    it("updates a name that only shared memory has", function()
        shared.put("other.test", record.make("other.test", { "127.0.0.1:7" }, "17", nil))
        put("other.test", 8)
        acknowledged()
        eventually_port("other.test", "8")
    end)

    it("reads a change that came while too many lookups were open", function()
        put("late.test", 1)
        acknowledged()
        lookups.wait({ "late.test" }, 1)
        truthy(shared.has("late.test"), "in shared memory")
        local open = lookups.open
        lookups.open = 20000
        put("late.test", nil)
        runner.eventually("the push", function() return port_of("late.test") == "nil", port_of("late.test") end)
        truthy(shared.has("late.test"), "not looked up yet")
        lookups.open = open
        -- Without a request for it: shared memory must not serve it while the replica is down.
        runner.eventually("the lookup", function() return not shared.has("late.test") end)
        equal(port_of("late.test"), "false")
    end)

    it("drops what a wildcard decided when the wildcard changes", function()
        put("*.wild.test", 3)
        acknowledged()
        lookups.wait({ "*.wild.test" }, 1)
        routes.put_wild("x.wild.test", routes.known("*.wild.test"))
        put("*.wild.test", 4)
        acknowledged()
        eventually_port("*.wild.test", "4")
        equal(routes.wild:get("x.wild.test"), nil)
    end)

    it("rejects a table whose serial went back, and keeps routing and its last serial", function()
        local before = ack.workers()[1].serial
        redis.call("SET", "serial", "3")
        alarm("table_regressed")
        put("a.test", 99)
        equal({ port_of("a.test"), lookups.trusted, ack.workers()[1].serial }, { "1", false, before })
        runner.eventually("the worker to report it", function()
            local one = ack.workers()[1]
            return one.alarm == "table_regressed" and not one.accepted, one
        end)
        truthy(runner.logged("the table in Redis is rejected (table_regressed)"), "a warning")
        put("a.test", 6)
        redis.call("SET", "serial", before + 10)
        alarm(nil)
        trusted()
        acknowledged()
        eventually_port("a.test", "6")
        truthy(runner.logged("the table in Redis is accepted again"), "a notice")
    end)

    it("wakes a request that a wildcard serves when its own host appears, even in a rejected table", function()
        put("*.held.test", nil)
        acknowledged()
        lookups.wait({ "a.held.test", "*.held.test" }, 1)
        local function wakes_after(change)
            local place, woken = held.enter("*.held.test", "a.held.test"), nil
            local waiting = ngx.thread.spawn(function()
                held.wait(place, 30)
                woken = true
            end)
            change()
            runner.eventually("the request to be woken", function() return woken, port_of("a.held.test") end)
            assert(ngx.thread.wait(waiting))
            held.leave(place)
        end
        wakes_after(function() put("a.held.test", 7) end)
        equal(port_of("a.held.test"), "7")
        put("a.held.test", nil)
        eventually_port("a.held.test", "false")
        wakes_after(function()
            local before = tonumber(redis.call("GET", "serial"))
            redis.call("SET", "serial", "3")
            alarm("table_regressed")
            put("a.held.test", 8)
            redis.call("SET", "serial", before + 10)
        end)
        equal(port_of("a.held.test"), "8")
        trusted()
        acknowledged()
    end)

    it("rejects an emptied primary, and a table of another lineage", function()
        redis.call("FLUSHALL")
        alarm("table_regressed")
        equal({ port_of("a.test"), lookups.trusted }, { "6", false })
        redis.call("MSET", "serial", "100000", "epoch", "zz")
        alarm("epoch_unknown")
        equal({ port_of("a.test"), lookups.trusted }, { "6", false })
        -- Seeded again by the pacemaker, which knows the lineage and writes the epoch last.
        put("a.test", 9)
        redis.call("SET", "epoch", "bb aa")
        alarm(nil)
        trusted()
        acknowledged()
        eventually_port("a.test", "9")
        equal((shared.accepted_table()), "bb aa")
    end)

    it("accepts any table when an operator requests it", function()
        redis.call("MSET", "serial", "1", "epoch", "new")
        alarm("epoch_unknown")
        shared.forget_table()
        alarm(nil)
        trusted()
        runner.eventually("the new table to be accepted", function()
            local epoch, serial = shared.accepted_table()
            return epoch == "new" and serial == 1, { epoch, serial }
        end)
        truthy(runner.logged("an operator accepts the table in Redis"), "a notice")
    end)

    it("asks for everything again after a lost connection, and serves it until then", function()
        put("a.test", 11)
        put("b.test", 12)
        acknowledged()
        lookups.wait({ "a.test", "b.test" }, 1)
        local sweep = routes.sweep
        -- The change happens while the worker receives nothing.
        redis.call("CLIENT", "KILL", "TYPE", "pubsub")
        redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        put("a.test", 13)
        runner.eventually("a sweep", function() return routes.sweep > sweep and lookups.trusted end)
        acknowledged()
        equal({ port_of("a.test"), port_of("b.test"), routes.suspects }, { "13", "12", 0 })
    end)

    it("keeps serving when the replica is gone", function()
        redis.crash()
        runner.eventually("the loss to be noticed", function() return not lookups.trusted end)
        equal({ port_of("a.test"), follow.state() }, { "13", nil, false, false })
        runner.eventually("the worker to report it", function() return not ack.workers()[1].accepted end)
    end)

    it("does not accept an empty replica that is not linked to its primary yet", function()
        redis.start("--replicaof 127.0.0.1 1")
        -- ROLE shows that it is apart from its primary; otherwise its empty table would be a regression.
        runner.eventually("two verifications", function()
            local calls = redis.call("INFO", "commandstats"):match("cmdstat_role:calls=(%d+)")
            return tonumber(calls or 0) >= 2, calls
        end)
        equal({ follow.state() }, { nil, true, false })
        equal(port_of("a.test"), "13")
        redis.call("REPLICAOF", "NO", "ONE")
        put("a.test", 14)
        redis.call("MSET", "epoch", "new", "serial", "500")
        trusted()
        acknowledged()
        eventually_port("a.test", "14")
    end)
end
