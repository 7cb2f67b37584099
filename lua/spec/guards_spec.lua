-- The guards of a host's policy, with real requests through @full.

local app = require("app")
local client = require("client")
local crypto = require("signalbox.crypto")
local guards = require("signalbox.guards")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local equal, truthy = runner.equal, runner.truthy

require("signalbox.lookups").trusted = true
secret.set(("k"):rep(32))

local ONE, TWO = app.address("one"), app.address("two")

local function policy(text)
    routes.put("app.test", record.make("app.test", { ONE }, "17", "{" .. text .. "}"))
end

local function refused(response)
    return { response.status, response.headers["x-signalbox-error"] }
end

local function ticket(address, expires, host)
    local text = (host or "app.test") .. "\n" .. address .. "\n" .. expires
    return address .. ";" .. expires .. ";" .. crypto.hmac(secret.of("target"), text):gsub(".", function(c)
        return ("%02x"):format(c:byte())
    end)
end

return function(it)
    it("redirects to HTTPS, and keeps the method of a POST", function()
        policy('"https":"redirect"')
        local response = client.request({ path = "/a?b=c" })
        equal({ response.status, response.headers.location }, { 301, "https://app.test/a?b=c" })
        guards.https_port = "8443"
        response = client.request({ method = "POST", path = "/a", body = "x" })
        equal({ response.status, response.headers.location }, { 308, "https://app.test:8443/a" })
        guards.https_port = "443"
        equal(client.request({ headers = { ["X-Forwarded-Proto"] = "https" } }).body, "one")
    end)

    it("rejects plain HTTP where only HTTPS is allowed, except for certificate authorities", function()
        policy('"https":"only"')
        equal(refused(client.request({})), { 403, "https_only" })
        equal(client.request({ path = "/.well-known/acme-challenge/x" }).body, "one")
        equal(client.request({ headers = { ["X-Forwarded-Proto"] = "https" } }).body, "one")
        for _, path in ipairs({ "/a/../.well-known/acme-challenge/x", "/.well-known/acme-challenge/x/../y",
            "/.well-known/acme-challenge/", "/.well-known/acme-challenge/x?y" }) do
            equal(refused(client.request({ path = path })), { 403, "https_only" }, path)
        end
    end)

    it("answers for a host under maintenance, except to clients with the agreed header", function()
        policy('"maintenance":{"retry_after":60,"except_header":{"name":"X-Preview","value":"yes"}}')
        local response = client.request({})
        equal(refused(response), { 503, "maintenance" })
        equal(response.headers["retry-after"], "60")
        equal(client.request({ headers = { ["X-Preview"] = "no" } }).status, 503)
        equal(client.request({ headers = { ["X-Preview"] = "yes" } }).body, "one")
        equal(client.request({ path = "/.well-known/acme-challenge/x" }).body, "one")
        policy('"maintenance":{"status":200,"body":"<p>soon</p>","content_type":"text/html"}')
        response = client.request({})
        equal(refused(response), { 200, "maintenance" })
        equal({ response.body, response.headers["content-type"] }, { "<p>soon</p>", "text/html" })
    end)

    it("rejects a method that the host does not accept, and names those that it does", function()
        policy('"methods":["GET","PUT"]')
        local response = client.request({ method = "DELETE" })
        equal(refused(response), { 405, "method_not_allowed" })
        equal(response.headers.allow, "GET, HEAD, PUT")
        equal(client.request({ method = "PUT", body = "x" }).body, "one")
    end)

    it("rejects a body that is too large, announced or not", function()
        policy('"body_bytes":10')
        equal(client.request({ method = "PUT", body = ("x"):rep(10) }).body, "one")
        equal(refused(client.request({ method = "PUT", body = ("x"):rep(11) })), { 413, "body_too_large" })
        local function send_chunked(size)
            local socket = ngx.socket.tcp()
            assert(socket:connect("unix:" .. ngx.config.prefix() .. "edge.sock"))
            assert(socket:send("PUT / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n"
                .. ("Transfer-Encoding: chunked\r\n\r\n%x\r\n"):format(size) .. ("x"):rep(size) .. "\r\n0\r\n\r\n"))
            local status = assert(socket:receive("*l")):match(" (%d+)")
            socket:close()
            return tonumber(status)
        end
        equal({ send_chunked(10), send_chunked(11) }, { 200, 413 })
    end)

    it("limits the rate of a client, and announces when to retry", function()
        policy('"limits":{"requests":{"per_second":0.01,"burst":1,"by":{"header":"X-Key"}}}')
        local function request(key)
            return client.request({ headers = { ["X-Key"] = key } })
        end
        equal({ request("a").status, request("a").status }, { 200, 200 })
        local response = request("a")
        equal(refused(response), { 429, "too_many_requests" })
        local wait = tonumber(response.headers["retry-after"])
        truthy(wait > 90 and wait <= 100, "about 100 s: " .. wait)
        equal(request("b").status, 200)
        equal(require("signalbox.counters").get("limited"), 1)
    end)

    it("limits requests in flight, and takes each off when it ends", function()
        policy('"limits":{"connections":{"most":1,"by":"host"}}')
        local second
        app.behavior.one = function()
            app.behavior.one = nil
            second = client.request({})
            ngx.print("first")
        end
        equal(client.request({}).body, "first")
        equal(refused(second), { 429, "too_many_connections" })
        runner.eventually("the first to be taken off", function()
            local response = client.request({})
            return response.status == 200, response.status
        end)
    end)

    it("changes the headers of a request", function()
        policy('"headers":{"request":{"set":{"X-Env":"live"},"remove":["X-Debug"]}}')
        app.behavior.one = function()
            local headers = ngx.req.get_headers()
            ngx.print(headers["X-Env"], " ", tostring(headers["X-Debug"]))
        end
        equal(client.request({ headers = { ["X-Debug"] = "1", ["X-Env"] = "mine" } }).body, "live nil")
        app.behavior.one = nil
    end)

    it("sends a request with a ticket to its instance only, which does not see the ticket", function()
        routes.put("app.test", record.make("app.test", { ONE, TWO }, "17",
            ('{"target_header":true,"draining":["%s"]}'):format(TWO)))
        app.behavior.two = function()
            ngx.print(tostring(ngx.req.get_headers()["X-Signalbox-Target"]))
        end
        local expires = ngx.time() + 60
        local function request(text)
            return client.request({ headers = { ["X-Signalbox-Target"] = text } })
        end
        equal({ request(ticket(TWO, expires)).body, request(ticket(ONE, expires)).body, client.request({}).body },
            { "nil", "one", "one" })
        equal(refused(request(ticket(TWO, expires, "other.test"))), { 403, "bad_ticket" })
        equal(refused(request(ticket(TWO, ngx.time() - 1))), { 403, "bad_ticket" })
        equal(refused(request(ticket(app.address("three"), expires))), { 503, "target_gone" })
        policy('"methods":["GET"]')
        equal(request(ticket(TWO, expires)).body, "one")
    end)
end
