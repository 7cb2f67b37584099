-- The hot path, by real requests through nginx to real applications.

local app = require("app")
local client = require("client")
local counters = require("signalbox.counters")
local in_flight = require("signalbox.in_flight")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

local ONE, TWO, DOWN
local REFUSED = "failed (2: No such file or directory) while connecting to upstream"
local CLOSED = "upstream prematurely closed connection"

secret.set(("k"):rep(32))

-- Separate addresses for each test, and applications that work.
local function begin()
    ONE, TWO, DOWN = app.alias("one"), app.alias("two"), app.alias("down")
    app.behavior, app.seen = {}, {}
end

local function route(addresses, policy)
    routes.put("app.test", record.make("app.test", addresses, "17", policy))
end

local function last_log_line()
    local file = assert(io.open(ngx.config.prefix() .. "access.log"))
    local text = file:read("*a")
    file:close()
    return text:match("([^\n]*)\n$")
end

local function bodies(n, options)
    local seen = {}
    for _ = 1, n do
        local body = client.request(options or {}).body
        seen[body] = (seen[body] or 0) + 1
    end
    return seen
end

return function(run)
    local function it(name, body)
        run(name, function()
            begin()
            body()
        end)
    end

    it("sends the requests of a known host to its instances in turn, and logs the version type", function()
        route({ ONE, TWO })
        equal(bodies(10), { one = 5, two = 5 })
        contains(last_log_line(), '"key":"17"')
        equal(routes.plain["app.test"] ~= nil, true)
    end)

    it("serves a host under a wildcard that an earlier request has resolved", function()
        routes.put_wild("a.wild.test", record.make("*.wild.test", { TWO }, "18", nil))
        equal(client.request({ host = "a.wild.test" }).body, "two")
        contains(last_log_line(), '"key":"18"')
    end)

    it("leaves an unknown host to @full", function()
        require("signalbox.lookups").trusted = true
        routes.put("none.test", false)
        routes.put("*.test", false)
        routes.put("*", false)
        local response = client.request({ host = "none.test" })
        equal({ response.status, response.headers["x-signalbox-error"] }, { 404, "no_route" })
        contains(last_log_line(), '"key":"null"')
        contains(last_log_line(), '"upstream_status":"-"')
    end)

    it("retries at another instance when one cannot be connected to, whatever the method", function()
        runner.expect_error(REFUSED)
        route({ DOWN, ONE })
        local before = counters.get("retries")
        for _ = 1, 4 do
            equal(client.request({ method = "POST", body = "x" }).body, "one")
        end
        truthy(counters.get("retries") > before, "a retry was counted")
    end)

    it("retries a failure of an instance only for methods that may be repeated", function()
        runner.expect_error(CLOSED)
        route({ ONE, TWO })
        app.behavior.one = app.close
        for _ = 1, 4 do
            equal(client.request({}).body, "two")
        end
        app.counts()
        app.behavior.two = app.close
        equal(client.request({ method = "POST", body = "x" }).status, 502)
        local seen = app.counts()
        equal((seen.one or 0) + (seen.two or 0), 1, "tries")
    end)

    it("passes on the answer of the last instance when all fail with one", function()
        route({ ONE, TWO })
        app.behavior.one, app.behavior.two = app.status(503), app.status(503)
        local response = client.request({})
        equal({ response.status, response.body }, { 503, "status 503" })
        equal(app.counts(), { one = 1, two = 1 })
    end)

    it("gives nothing to an ejected instance", function()
        route({ ONE, TWO })
        -- As another worker would eject it, for a minute.
        local dict = ngx.shared.signalbox_outliers
        dict:set("e:" .. ONE, ("%d|1|60000"):format((require("signalbox.clock").now() + 60) * 1000))
        dict:set("g:" .. dict:incr("generation", 1, 0), ONE)
        runner.eventually("this worker to see it", function() return outliers.any() end)
        equal(bodies(6), { two = 6 })
    end)

    it("ejects an instance for the failures of its requests", function()
        runner.expect_error(CLOSED)
        route({ ONE, TWO })
        app.behavior.two = app.close
        equal(bodies(20), { one = 20 })
        equal(select(2, outliers.describe(TWO)), 1, "ejections")
    end)

    it("stops retrying when the budget is used up, and passes on the instance's answer", function()
        local policy = '{"retries":{"budget_percent":0},"ejection":false}'
        route({ ONE, TWO }, policy)
        app.behavior.one, app.behavior.two = app.status(503), app.status(503)
        equal(client.request({}).status, 503)
        local total = 0
        for _, n in pairs(app.counts()) do
            total = total + n
        end
        equal(total, 1)
    end)

    it("pays for each retry of a failed request from the budget", function()
        route({ ONE, TWO }, '{"ejection":false}')
        app.behavior.one = app.status(503)
        local requests = 0
        repeat
            requests = requests + 1
        until client.request({}).status == 503 or requests == 5000
        -- Half of the requests need a retry. The budget allows 100 at first, and then less than is needed.
        truthy(requests > 190 and requests < 5000, "requests until the first without a retry: " .. requests)
    end)

    it("serves a policy that needs only a choice, without @full", function()
        route({ ONE, TWO }, ('{"weights":{"%s":3},"log_keys":{"%s":"18"},"ejection":false}'):format(ONE, ONE))
        equal(bodies(8), { one = 6, two = 2 })
        contains(last_log_line(), '"upstream_addr":"unix:')
        -- A request that went through @full has first been declined here, which nginx lists without an address.
        truthy(not last_log_line():find('"upstream_addr":" :', 1, true), "no declined try")
        app.behavior.one = app.status(503)
        equal(bodies(4), { two = 4 })
    end)

    it("counts requests in flight for p2c until they end", function()
        route({ ONE }, '{"balance":{"algorithm":"p2c"}}')
        local during
        app.behavior.one = function()
            during = in_flight.of(ONE)
            ngx.print("counted")
        end
        equal(client.request({}).body, "counted")
        equal(during, 1)
        runner.eventually("no request to be in flight", function()
            return in_flight.of(ONE) == 0, in_flight.of(ONE)
        end)
    end)

    it("sends a request whose record vanished between two tries to @full", function()
        runner.expect_error(CLOSED)
        route({ ONE, TWO })
        local function replace()
            -- With a policy that the hot path cannot serve.
            routes.put("app.test", record.make("app.test", { ONE, TWO }, "17", '{"sticky":{},"ejection":false}'))
            app.behavior = {}
            return app.close()
        end
        app.behavior.one, app.behavior.two = replace, replace
        local response = client.request({})
        equal(response.status, 200)
        truthy(response.headers["set-cookie"], "@full has set the cookie")
    end)
end
