-- @full, by real requests through nginx to real applications. The spec itself writes the route cache.

local app = require("app")
local client = require("client")
local counters = require("signalbox.counters")
local held = require("signalbox.held")
local in_flight = require("signalbox.in_flight")
local json = require("signalbox.json")
local lookups = require("signalbox.lookups")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local shared = require("signalbox.shared")
local equal, truthy = runner.equal, runner.truthy

-- Connections that waiting requests try.
local address, probes = require("signalbox.address"), 0
local connect = address.connect
address.connect = function(...)
    probes = probes + 1
    return connect(...)
end

require("signalbox.full")

local REFUSED = "failed (2: No such file or directory) while connecting to upstream"
local CLOSED = "upstream prematurely closed connection"
-- A policy that changes nothing and that the hot path cannot serve.
local FULL = '"timeouts":{"send_ms":5000}'

secret.set(("k"):rep(32))
lookups.trusted = true

local ONE, TWO, DOWN

local function put(addresses, policy, name)
    routes.put(name or "app.test", record.make(name or "app.test", addresses, "17", policy and "{" .. policy .. "}"))
end

local function log_line()
    local file = assert(io.open(ngx.config.prefix() .. "access.log"))
    local text = file:read("*a")
    file:close()
    return json.decode(text:match("([^\n]*)\n$"))
end

local function refused(response)
    return { response.status, response.headers["x-signalbox-error"] }
end

local function idle()
    runner.eventually("no request to be in flight", function()
        return in_flight.total == 0, in_flight.total
    end)
end

return function(run)
    local function it(name, body)
        run(name, function()
            ONE, TWO, DOWN = app.alias("one"), app.alias("two"), app.alias("down")
            app.behavior = {}
            app.counts()
            body()
            idle()
        end)
    end

    -- ── finding the host ──

    it("rejects a request that has no host, or one that no application can have", function()
        equal(refused(client.request({ host = false })), { 400, "no_host" })
        equal(refused(client.request({ host = "a~b" })), { 404, "no_route" })
        equal(refused(client.request({ host = ("x"):rep(254) })), { 404, "no_route" })
    end)

    it("distinguishes a host that does not exist from one that is unknown", function()
        for _, name in ipairs({ "none.test", "*.test", "*" }) do
            routes.put(name, false)
        end
        equal(refused(client.request({ host = "none.test" })), { 404, "no_route" })
        lookups.trusted = false
        local response = client.request({ host = "unknown.zz" })
        equal(refused(response), { 503, "table_unreachable" })
        equal(response.headers["retry-after"], "1")
        lookups.trusted = true
        equal(log_line().key, "null")
    end)

    it("serves a host under a wildcard, and remembers it for the hot path and for outages", function()
        routes.put("a.wild.test", false)
        put({ ONE }, nil, "*.wild.test")
        equal(client.request({ host = "a.wild.test" }).body, "one")
        truthy(routes.wild.young["a.wild.test"], "for the hot path")
        equal(shared.alias("a.wild.test"), "*.wild.test")
        put({ ONE }, FULL, "*.ruled.test")
        routes.put("a.ruled.test", false)
        equal(client.request({ host = "a.ruled.test" }).body, "one")
        equal(routes.wild.young["a.ruled.test"], nil)
        equal(shared.alias("a.ruled.test"), "*.ruled.test")
    end)

    it("answers for a host without instances, and logs its version type", function()
        routes.put("app.test", record.make("app.test", {}, "17", nil))
        local response = client.request({})
        equal(refused(response), { 503, "no_instance" })
        equal({ response.headers["retry-after"], log_line().key }, { "1", "17" })
        put({ ONE }, ('"draining":["%s"]'):format(ONE))
        equal(refused(client.request({})), { 503, "no_instance" })
    end)

    -- ── choosing and retrying ──

    it("routes a host with a policy, logs the instance, and counts the request until it ends", function()
        put({ ONE, TWO }, FULL .. (',"log_keys":{"%s":"18"},"weights":{"%s":0}'):format(ONE, TWO))
        local during
        app.behavior.one = function()
            during = in_flight.of(ONE)
            ngx.print("one")
        end
        equal(client.request({}).body, "one")
        local line = log_line()
        equal({ line.key, line.upstream_addr, line.upstream_status, during }, { "18", ONE, "200", 1 })
    end)

    it("retries a refused connection for any method, and a failure for methods that may be repeated", function()
        runner.expect_error(REFUSED)
        runner.expect_error(CLOSED)
        put({ DOWN, ONE }, FULL)
        local before = counters.get("retries")
        for _ = 1, 4 do
            equal(client.request({ method = "POST", body = "x" }).body, "one")
        end
        truthy(counters.get("retries") > before, "retries are counted")
        put({ ONE, TWO }, FULL)
        app.behavior.one = app.close
        for _ = 1, 4 do
            equal(client.request({}).body, "two")
        end
        app.counts()
        app.behavior.two = app.close
        equal(refused(client.request({ method = "POST", body = "x" })), { 502, "connection_broken" })
        local seen = app.counts()
        equal((seen.one or 0) + (seen.two or 0), 1, "tries of a POST")
    end)

    it("tries every instance once, and reports the result of the last", function()
        runner.expect_error(REFUSED)
        put({ DOWN, app.alias("down"), app.alias("down") }, FULL)
        equal(refused(client.request({})), { 502, "connect_failed" })
        equal(select(2, log_line().upstream_addr:gsub("unix:", "")), 3)
    end)

    it("stops at the policy's number of tries, at its time, and at its budget", function()
        runner.expect_error(CLOSED)
        local function tries_of(policy)
            put({ ONE, TWO, app.alias("one"), app.alias("two") }, FULL .. ',"ejection":false,' .. policy)
            app.behavior.one, app.behavior.two = app.close, app.close
            app.counts()
            equal(client.request({}).status, 502)
            local seen = app.counts()
            return (seen.one or 0) + (seen.two or 0)
        end
        equal(tries_of('"retries":{"attempts":2}'), 2)
        equal(tries_of('"retries":{"budget_percent":0}'), 1)
        local slow = function()
            ngx.sleep(0.02)
            return app.close()
        end
        put({ ONE, TWO }, FULL .. ',"ejection":false,"retries":{"timeout_ms":1}')
        app.behavior.one, app.behavior.two = slow, slow
        app.counts()
        equal(client.request({}).status, 502)
        local seen = app.counts()
        -- One try is granted before the first has taken any time.
        truthy((seen.one or 0) + (seen.two or 0) <= 2, "tries")
    end)

    it("answers 504 when the instance is silent", function()
        runner.expect_error("upstream timed out")
        put({ ONE }, '"timeouts":{"read_ms":20}')
        app.behavior.one = function() ngx.sleep(0.5) end
        equal(refused(client.request({})), { 504, "timeout" })
        app.behavior = {}
    end)

    it("takes over from the hot path when all instances have failed, for one that was added since", function()
        runner.expect_error(REFUSED)
        runner.expect_error(CLOSED)
        put({ ONE, DOWN })
        app.behavior.one = function()
            put({ ONE, DOWN, TWO })
            return app.close()
        end
        for _ = 1, 4 do
            equal(client.request({}).body, "two")
            put({ ONE, DOWN })
        end
    end)

    it("counts failures for the ejection of an instance, and successes against it", function()
        runner.expect_error(CLOSED)
        put({ ONE, TWO }, FULL .. ',"ejection":{"first_ms":60000}')
        local fails = true
        app.behavior.one = function()
            fails = not fails
            return (fails and app.close or app.status(200))()
        end
        for _ = 1, 30 do
            client.request({})
        end
        truthy(not (outliers.any() and outliers.is_ejected(ONE)), "every second request works")
        app.behavior.one = app.close
        for _ = 1, 20 do
            client.request({})
        end
        truthy(outliers.any() and outliers.is_ejected(ONE), "ejected")
    end)

    it("passes on the failure that an instance itself answers, after trying the others", function()
        put({ ONE, TWO }, FULL .. ',"ejection":false')
        app.behavior.one, app.behavior.two = app.status(503), app.status(503)
        local response = client.request({})
        equal({ response.status, response.body, response.headers["x-signalbox-error"] }, { 503, "status 503" })
        equal(app.counts(), { one = 1, two = 1 })
    end)

    -- ── waiting ──

    it("holds a request until its host gets an instance", function()
        put({}, '"hold_ms":10000')
        local response
        local waiting = ngx.thread.spawn(function() response = client.request({}) end)
        runner.eventually("the request to be held", function() return held.count == 1, held.count end)
        put({ ONE }, '"hold_ms":10000')
        held.arrived("app.test")
        assert(ngx.thread.wait(waiting))
        equal({ response.status, response.body, counters.get("held") }, { 200, "one", 1 })
    end)

    it("holds a request while its only instance refuses connections, and detects that it is back", function()
        runner.expect_error(REFUSED)
        runner.allow_error("failed (2: No such file or directory)")
        put({ DOWN }, '"hold_ms":10000')
        local response
        local waiting = ngx.thread.spawn(function() response = client.request({ method = "POST", body = "x" }) end)
        runner.eventually("the request to be held", function() return held.count == 1, held.count end)
        os.execute(("rm %s; ln -s one.sock %s"):format(DOWN:sub(6), DOWN:sub(6)))
        assert(ngx.thread.wait(waiting))
        equal({ response.status, response.body }, { 200, "one" })
    end)

    it("tries one connection at a time, however many requests wait for an instance, and wakes all", function()
        runner.expect_error(REFUSED)
        runner.allow_error("failed (2: No such file or directory)")
        put({ DOWN }, '"hold_ms":10000')
        put({ DOWN }, '"hold_ms":10000', "other.test")
        local bodies, waiting = {}, {}
        for i = 1, 30 do
            waiting[i] = ngx.thread.spawn(function()
                bodies[i] = client.request({ host = i > 15 and "other.test" or "app.test" }).body
            end)
        end
        runner.eventually("the requests to be held", function() return held.count == 30, held.count end)
        ngx.sleep(0.3)
        local before, began = probes, ngx.now()
        ngx.sleep(1)
        ngx.update_time()
        local most = (ngx.now() - began) / 0.15 + 1
        truthy(probes > before and probes - before <= most, probes - before .. " of " .. most)
        os.execute(("rm %s; ln -s one.sock %s"):format(DOWN:sub(6), DOWN:sub(6)))
        before = probes
        for i = 1, 30 do
            assert(ngx.thread.wait(waiting[i]))
        end
        equal({ #bodies, bodies[1], bodies[30], held.count }, { 30, "one", "one", 0 })
        truthy(probes - before <= 2, probes - before .. " connections")
    end)

    it("keeps a request whose instance refuses connections through changes of its policy", function()
        runner.expect_error(REFUSED)
        runner.allow_error("failed (2: No such file or directory)")
        put({ DOWN }, '"hold_ms":10000')
        local response
        local waiting = ngx.thread.spawn(function() response = client.request({}) end)
        runner.eventually("the request to be held", function() return held.count == 1, held.count end)
        for change = 1, 3 do
            put({ DOWN }, ('"hold_ms":10000,"slow_start_ms":%d'):format(change))
            held.arrived("app.test")
            ngx.sleep(0.05)
            equal({ held.count, response and response.status }, { 1 })
        end
        -- Its instance is removed, and is not tried any more.
        put({}, '"hold_ms":10000')
        held.arrived("app.test")
        os.execute(("rm %s; ln -s one.sock %s"):format(DOWN:sub(6), DOWN:sub(6)))
        ngx.sleep(0.5)
        equal({ held.count, response and response.status }, { 1 })
        put({ TWO }, '"hold_ms":10000')
        held.arrived("app.test")
        assert(ngx.thread.wait(waiting))
        equal(response.body, "two")
    end)

    it("wakes a request that a wildcard serves when its own host gets an instance", function()
        put({}, '"hold_ms":10000', "*.held.test")
        routes.put("a.held.test", false)
        local response
        local waiting = ngx.thread.spawn(function() response = client.request({ host = "a.held.test" }) end)
        runner.eventually("the request to be held", function() return held.count == 1, held.count end)
        put({ ONE }, nil, "a.held.test")
        held.arrived("a.held.test")
        assert(ngx.thread.wait(waiting))
        equal(response.body, "one")
    end)

    it("answers 503 when no instance arrives in time", function()
        put({}, '"hold_ms":30')
        equal(refused(client.request({})), { 503, "no_instance" })
    end)

    -- ── policies ──

    it("sets a sticky cookie, brings the client back, and sets a new one when the instance is gone", function()
        put({ ONE, TWO }, '"sticky":{"cookie":"sid"}')
        local response = client.request({})
        local cookie = response.headers["set-cookie"]:match("^(sid=[^;]+)")
        for _ = 1, 6 do
            local again = client.request({ headers = { Cookie = cookie } })
            equal({ again.body, again.headers["set-cookie"] }, { response.body })
        end
        put({ response.body == "one" and TWO or ONE }, '"sticky":{"cookie":"sid"}')
        local moved = client.request({ headers = { Cookie = cookie } })
        truthy(moved.body ~= response.body and moved.headers["set-cookie"], "another instance and another cookie")
    end)

    it("lets a client finish its session at a draining instance", function()
        put({ ONE }, '"sticky":{"cookie":"sid"}')
        local cookie = client.request({}).headers["set-cookie"]:match("^(sid=[^;]+)")
        put({ ONE }, ('"sticky":{"cookie":"sid"},"draining":["%s"]'):format(ONE))
        equal(client.request({ headers = { Cookie = cookie } }).body, "one")
        equal(refused(client.request({})), { 503, "no_instance" })
    end)

    it("changes the headers of the answer", function()
        put({ ONE }, '"headers":{"response":{"set":{"X-Frame-Options":"DENY"},"remove":["X-Powered-By"]}}')
        app.behavior.one = function()
            ngx.header["X-Powered-By"] = "test"
            ngx.print("one")
        end
        local response = client.request({})
        equal({ response.headers["x-frame-options"], response.headers["x-powered-by"] }, { "DENY" })
    end)

    it("talks TLS to instances, and verifies their name unless the policy switches that off", function()
        runner.expect_error("upstream SSL certificate does not match")
        local secure = app.address("secure")
        put({ secure }, '"upstream":{"tls":true,"server_name":"table.test"}')
        equal(client.request({}).body, "secure")
        put({ secure }, '"upstream":{"tls":true,"server_name":"other.test"},"ejection":false')
        equal(client.request({}).status, 502)
        put({ secure }, '"upstream":{"tls":true,"server_name":"other.test","verify":false}')
        equal(client.request({}).body, "secure")
    end)


    -- ── what does not pass ──

    it("answers a request that has been here before, or whose port is not valid", function()
        put({ ONE }, FULL)
        local response = client.request({ headers = { ["X-Unusual"] = "loop" } })
        equal(refused(response), { 508, "loop_detected" })
        equal(response.headers["cache-control"], "no-store")
        equal(refused(client.request({ headers = { ["X-Unusual"] = "port" } })), { 400, "bad_request" })
        equal(app.counts(), {})
    end)

    it("removes the headers that Connection names, except those that it needs", function()
        put({ ONE })
        app.behavior.one = function()
            local headers = ngx.req.get_headers()
            ngx.print(headers["X-One"] or "none", headers["X-Two"] or "none", headers["X-Kept"], headers.Host)
        end
        local response = client.request({ headers = { ["X-Unusual"] = "named", ["X-One"] = "1", ["X-Two"] = "2",
            ["X-Kept"] = "3", Connection = "x-one, X-Two,Host" } })
        -- The client of the specs sends a Connection line of its own first.
        equal(response.body, "nonenone3app.test")
        response = client.request({ connection = "close, x-one, X-Two,Host", headers = { ["X-Unusual"] = "named",
            ["X-One"] = "1", ["X-Two"] = "2", ["X-Kept"] = "3" } })
        equal(response.body, "nonenone3app.test")
    end)

    it("forwards an upgrade to WebSocket only if Connection asks for it", function()
        app.behavior.one = function()
            local headers = ngx.req.get_headers()
            ngx.print(headers.Upgrade or "none", " ", headers["CDN-Loop"])
        end
        put({ ONE })
        for _, host in ipairs({ "app.test", "app.test:8080" }) do
            for _, edges in ipairs({ "", "other.example" }) do
                local function received(connection, upgrade)
                    local loop = edges ~= "" and edges or nil
                    local headers = { Upgrade = upgrade, ["CDN-Loop"] = loop }
                    return client.request({ host = host, connection = connection, headers = headers }).body
                end
                local passed = edges .. (edges ~= "" and ", " or "") .. "signalbox-spec"
                for _, connection in ipairs({ "Upgrade, close", "close, upgrade", "close,upgrade ,x-y" }) do
                    equal(received(connection, "WebSocket"), "WebSocket " .. passed, connection)
                    equal(received(connection, "h2c"), "none " .. passed, connection)
                end
                for _, upgrade in ipairs({ "websocket", "websocket upgrade", "websocket, upgrade" }) do
                    equal(received("close", upgrade), "none " .. passed, upgrade)
                    equal(received("close, x-upgrade", upgrade), "none " .. passed, upgrade)
                end
            end
        end
    end)

    it("answers in place of an instance that sends an interim response, or no HTTP", function()
        runner.expect_error("upstream sent no valid HTTP/1.0 header")
        local function sends(text)
            return function()
                local socket = assert(ngx.req.socket(true))
                socket:send(text)
                ngx.sleep(0.2)
            end
        end
        local INTERIM = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        for _, policy in ipairs({ false, FULL }) do
            ONE, TWO = app.alias("one"), app.alias("two")
            app.counts()
            put({ ONE, TWO }, policy or nil)
            app.behavior.one = sends(INTERIM .. "HTTP/1.1 200 OK\r\n\r\n")
            app.behavior.two = app.behavior.one
            local response = client.request({ connection = "keep-alive" })
            equal(refused(response), { 502, "interim_response" })
            equal(response.headers.connection, "close")
            equal(client.raw({ connection = "keep-alive" }):find("keep-alive", 1, true), nil)
            local seen = app.counts()
            equal((seen.one or 0) + (seen.two or 0), 2, "one try for each request")
            equal({ outliers.describe(ONE) }, { 0, 0, 0 })
            equal({ outliers.describe(TWO) }, { 0, 0, 0 })
            put({ ONE }, policy or nil)
            app.behavior.one = sends("SSH-2.0-OpenSSH_9\r\n")
            local text = client.raw({ connection = "keep-alive" })
            truthy(text:find("^HTTP/1.1 502 "), text)
            truthy(text:find("\r\nConnection: close\r\n", 1, true), text)
            equal(text:find("keep-alive", 1, true), nil)
            truthy(text:find('"code":"not_http"', 1, true), text)
            equal(text:find("SSH", 1, true), nil)
            equal(select(3, outliers.describe(ONE)), 1, "failures")
            equal(log_line().code, 502)
        end
    end)

    it("does not give the answer to a request to the next one on the connection", function()
        put({ ONE }, FULL)
        app.behavior.one = function()
            app.behavior.one = nil
            local socket = assert(ngx.req.socket(true))
            socket:send("HTTP/1.1 103 Early Hints\r\n\r\n")
            ngx.sleep(0.2)
            socket:send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale")
            ngx.sleep(0.2)
        end
        -- The answer to a HEAD has no body, so nginx would keep the connection.
        client.raw({ method = "HEAD" })
        equal(client.request({}).body, "one")
    end)

    it("answers for headers that are too large, once, and without a failure of the instance", function()
        runner.expect_error("upstream sent too big header")
        local attempts = require("signalbox.attempts")
        attempts.max_header_bytes = 4096
        app.behavior.one = function()
            ngx.header["X-Large"] = ("x"):rep(5000)
            ngx.print("one")
        end
        app.behavior.two = app.behavior.one
        for _, policy in ipairs({ false, FULL }) do
            put({ ONE, TWO }, policy or nil)
            equal(refused(client.request({})), { 502, "response_headers_too_large" })
            local seen = app.counts()
            equal((seen.one or 0) + (seen.two or 0), 1, "tries")
            equal({ select(3, outliers.describe(ONE)), select(3, outliers.describe(TWO)) }, { 0, 0 })
        end
        attempts.max_header_bytes = 16384
    end)

    it("sends a request of a method that it does not know once", function()
        runner.expect_error(CLOSED)
        runner.expect_error(REFUSED)
        for _, policy in ipairs({ false, FULL .. ',"ejection":false' }) do
            put({ ONE, TWO }, policy or nil)
            for behavior, status in pairs({ [app.close] = 502, [app.status(503)] = 503 }) do
                app.behavior.one, app.behavior.two = behavior, behavior
                app.counts()
                equal(client.request({ method = "CHARGE" }).status, status)
                local seen = app.counts()
                equal((seen.one or 0) + (seen.two or 0), 1, "tries")
            end
            app.behavior = {}
            put({ DOWN, ONE }, policy or nil)
            for _ = 1, 4 do
                equal(client.request({ method = "CHARGE" }).body, "one")
            end
        end
    end)

    -- ── paused hosts ──

    it("holds requests of a paused host until it is resumed", function()
        put({ ONE }, '"pause":{"wait_ms":5000}')
        ngx.timer.at(0.05, function()
            put({ ONE }, '"pause":{"wait_ms":5000,"most":2}')
            held.arrived("app.test")
            ngx.sleep(0.05)
            put({ ONE })
            held.arrived("app.test")
        end)
        equal(client.request({}).body, "one")
        equal(held.count, 0)
    end)

    it("rejects requests of a paused host after a time, and beyond a number", function()
        put({ ONE }, '"pause":{"wait_ms":50}')
        local response = client.request({})
        equal(refused(response), { 503, "paused" })
        equal(response.headers["retry-after"], "1")
        equal(log_line().key, "17")
        put({ ONE }, '"pause":{"most":0}')
        equal(refused(client.request({})), { 503, "paused" })
        equal(app.counts().one, nil)
    end)

    it("does not send the request of a client that has left, and frees its place", function()
        for _, policy in ipairs({ '"pause":{"wait_ms":30000,"most":1}', '"hold_ms":30000' }) do
            local addresses = policy:find("pause") and { ONE } or {}
            for _, request in ipairs({ "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n",
                -- The end of the connection is behind data that nothing has read.
                "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 4\r\n\r\nbody" .. ("x"):rep(20000) }) do
                put(addresses, policy)
                local socket = ngx.socket.tcp()
                assert(socket:connect("unix:" .. ngx.config.prefix() .. "edge.sock"))
                assert(socket:send(request))
                runner.eventually("the request to wait", function() return held.count == 1, held.count end)
                socket:close()
                runner.eventually("its place to be free", function() return held.count == 0, held.count end)
                runner.eventually("its line of the log", function()
                    local line = log_line()
                    return line.code == 499 and line.key == "17", line
                end)
                put({ ONE })
                held.arrived("app.test")
                equal(client.request({}).body, "one")
                equal(app.counts().one, 1, "only the request of the client that is there")
            end
        end
    end)

    -- ── error pages ──

    it("answers with the page of the host, in place of the edge's own", function()
        local page = '"error_pages":{"503":{"body":"<h1>Back soon</h1>"},'
            .. '"502":{"body":"x","content_type":"text/plain"}}'
        put({}, page)
        local response = client.request({})
        equal({ response.status, response.body, response.headers["content-type"] },
            { 503, "<h1>Back soon</h1>", "text/html; charset=utf-8" })
        equal(response.headers["x-signalbox-error"], "no_instance")
        -- An instance's own answer is passed on.
        put({ ONE }, page)
        app.behavior.one = app.status(503)
        equal(client.request({}).body, "status 503")
        runner.expect_error(REFUSED)
        put({ DOWN }, page)
        equal(client.request({}).body, "x")
        put({}, page, "*.pages.test")
        routes.put("a.pages.test", false)
        equal(client.request({ host = "a.pages.test" }).body, "<h1>Back soon</h1>")
    end)
end
