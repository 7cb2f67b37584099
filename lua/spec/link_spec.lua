-- The link, on a real redis-server.

-- Replaced before the link stores it.
local is_exiting = false
rawset(ngx.worker, "exiting", function() return is_exiting end)

local held = require("signalbox.held")
local link = require("signalbox.link")
local redis = require("redis")
local resp = require("signalbox.resp")
local runner = require("runner")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

-- Distinctive words, for the search in the log.
local FIRST, SECOND = "first-opensesame", "second-opensesame"
local PASSWORD_FILE = ngx.config.prefix() .. "edge.password"
local LOGIN = { user = "edge", password_file = PASSWORD_FILE }
-- Of redis-server.
local USER = ("--user edge on '>%s' '~*' '&*' '+@all'"):format(FIRST)

local function set_password(password)
    local file = assert(io.open(PASSWORD_FILE, "w"))
    file:write(password, "\n")
    file:close()
end

local events = {}
local pushes = {}
local owner = {
    opened = function() events[#events + 1] = "opened" end,
    lost = function() events[#events + 1] = "lost" end,
    pushed = function(value) pushes[#pushes + 1] = value end,
}

local function connected()
    runner.eventually("the link to be connected", function() return link.ready, events end)
end

-- Sends a command and waits for what its handler gets.
local function ask(...)
    local got
    truthy(link.send(resp.command(...), function(value, kind, argument)
        got = { value, kind, argument }
    end, "argument"))
    runner.eventually("a reply", function() return got end)
    return got
end

return function(it)
    it("sends nothing without a connection, and detects that the replica is unavailable", function()
        equal(link.send(resp.command("PING"), function() error("called") end), false)
        set_password(FIRST)
        link.start(redis.address, owner, LOGIN)
        runner.eventually("the first attempt to fail", function() return link.down, link.connected end)
        truthy(runner.logged("cannot connect to the routes replica"), "a warning")
        equal(events, {})
    end)

    it("connects as soon as there is a server", function()
        redis.start(USER)
        connected()
        equal({ events, link.down }, { { "opened" }, false })
    end)

    it("hands each reply to its own handler, in order", function()
        equal(ask("SET", "key", "value"), { "OK", "+", "argument" })
        local got = {}
        for i = 1, 500 do
            link.send(resp.command("ECHO", i), function(value, _, argument) got[argument] = value end, i)
        end
        runner.eventually("500 replies", function() return #got == 500, #got end)
        for i = 1, 500 do
            equal(got[i], tostring(i))
        end
    end)

    it("hands the second reply of a text with two commands to the expected handler", function()
        local got = {}
        local function handler(value, _, argument)
            got[#got + 1] = argument .. " " .. value
        end
        link.send(resp.command("ECHO", "a") .. resp.command("ECHO", "b"), handler, "first")
        link.expect(handler, "second")
        runner.eventually("two replies", function() return #got == 2, got end)
        equal(got, { "first a", "second b" })
    end)

    it("hands error replies to the handler and stays connected", function()
        local got = ask("LPUSH", "key", "x")
        contains(got[1], "WRONGTYPE")
        equal({ got[2], link.connected }, { "-", true })
    end)

    it("reports every change under the table's prefixes, and no other, before the reply that follows it", function()
        pushes = {}
        redis.call("SET", "other", "1")
        redis.call("MSET", "serial", "1", "epoch", "e", "policy:a.test", "{}", "logkey:a.test", "1",
            "cert:a.test", "{}")
        redis.call("SADD", "instances:a.test", "127.0.0.1:1")
        ask("PING")
        local names = {}
        for _, push in ipairs(pushes) do
            equal(push[1], "invalidate")
            for _, name in ipairs(push[2]) do
                names[#names + 1] = name
            end
        end
        -- `serial` last within a change, which the acknowledgement in follow.lua depends on.
        equal(names, { "cert:a.test", "epoch", "logkey:a.test", "policy:a.test", "serial", "instances:a.test" })
        pushes = {}
        redis.call("FLUSHALL")
        ask("PING")
        equal(pushes, { { "invalidate", resp.null } })
    end)

    it("calls every waiting handler with nil when the connection is lost, and reconnects", function()
        events = {}
        local got
        redis.call("CLIENT", "PAUSE", "10000", "ALL")
        link.send(resp.command("GET", "key"), function(value, kind, argument)
            got = { value or "nil", kind or "nil", argument }
        end, 7)
        redis.crash()
        runner.eventually("the handler to be called", function() return got, events end)
        equal({ got, events }, { { "nil", "nil", 7 }, { "lost" } })
        truthy(runner.logged("connection to the routes replica lost"), "a warning")
        redis.start(USER)
        connected()
        equal({ events[1], events[2], ask("PING")[1] }, { "lost", "opened", "PONG" })
    end)

    it("ends the connection, and only it, when a handler fails", function()
        runner.expect_error("cannot read from the routes replica: ")
        events = {}
        link.send(resp.command("PING"), function() error("a bug") end)
        runner.eventually("a new connection", function() return events[2] == "opened" and link.ready, events end)
        equal(ask("PING")[1], "PONG")
    end)

    it("stays while the worker is exiting and requests wait, and ends after the last", function()
        local function pings()
            return tonumber(redis.call("INFO", "commandstats"):match("cmdstat_ping:calls=(%d+)") or 0)
        end
        events, pushes = {}, {}
        local before = pings()
        is_exiting, held.count = true, 1
        runner.eventually("two quiet seconds", function() return pings() > before, events end)
        redis.call("SET", "serial", "7")
        runner.eventually("a push", function() return #pushes > 0, events end)
        equal(events, {}, "the same connection")
        redis.call("CLIENT", "KILL", "USER", "edge")
        runner.eventually("a new connection", function() return events[2] == "opened" and link.ready, events end)
        held.count = 0
        runner.eventually("its end", function() return not link.connected, events end)
        is_exiting = false
        ngx.sleep(0.1)
        equal({ events, link.connected }, { { "lost", "opened", "lost" }, false })
        link.start(redis.address, owner, LOGIN)
        connected()
    end)

    it("names the cause when Redis rejects the login, and never the password", function()
        redis.call("ACL", "SETUSER", "edge", "resetpass", ">" .. SECOND)
        redis.call("CLIENT", "KILL", "USER", "edge")
        runner.eventually("a warning", function()
            return runner.logged("Redis rejected the connection: the user or the password is wrong")
        end)
        runner.eventually("the state of the link", function() return not link.ready and link.down, link.reason end)
        contains(link.reason, "ROUTES_REPLICA_PASSWORD_FILE")
    end)

    it("logs in with a changed password without a restart", function()
        set_password(SECOND)
        runner.eventually("an accepted connection", function() return link.ready, link.reason end)
        equal({ ask("PING")[1], link.reason or "none" }, { "PONG", "none" })
    end)

    it("names a missing permission", function()
        redis.call("ACL", "SETUSER", "edge", "-client|tracking")
        redis.call("CLIENT", "KILL", "USER", "edge")
        runner.eventually("a warning", function()
            return runner.logged("the user lacks a permission that the edge needs: NOPERM")
        end)
    end)

    it("reports a password file that cannot be read, and logs no password in any case", function()
        os.remove(PASSWORD_FILE)
        redis.call("ACL", "SETUSER", "edge", "+client|tracking")
        redis.call("CLIENT", "KILL", "USER", "edge")
        runner.eventually("a warning", function()
            return runner.logged("cannot read the password of the routes replica: ")
        end)
        local file = assert(io.open(ngx.config.prefix() .. "error.log"))
        local text = file:read("*a")
        file:close()
        equal({ text:find("opensesame", 1, true) }, {})
    end)
end
