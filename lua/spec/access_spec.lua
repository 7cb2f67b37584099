-- Who may use a host, by real requests through nginx.

local app = require("app")
local client = require("client")
local json = require("signalbox.json")
local lookups = require("signalbox.lookups")
local networks = require("signalbox.access.networks")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local equal, truthy = runner.equal, runner.truthy

secret.set(("k"):rep(32))
lookups.trusted = true

-- Of "secret": `openssl passwd -6`, and bcrypt.
local HASH = "$6$ab$2lDVylRMp48hlYZZFOCx/xnhJEsGPynJ17rt2um9Gb8wX6ygI4uDxg3Bg43pp/Hv397hwWfT8mciHws9eE4sR/"

-- An alias of an application that does not run.
local REFUSED = "sock failed (2: No such file or directory)"

local ONE, TWO

local function put(policy, name, addresses)
    name = name or "app.test"
    routes.put(name, record.make(name, addresses or { ONE }, name, policy))
end

local function get(path, headers, method)
    return client.request({ path = path, headers = headers, method = method })
end

local function refused(response)
    return { response.status, response.headers["x-signalbox-error"] }
end

local function credentials(text)
    return { Authorization = "Basic " .. ngx.encode_base64(text) }
end

-- The headers and the request line that an application received.
local received
local function record_request(status, headers)
    return function()
        received = ngx.req.get_headers()
        received.line = ngx.var.request
        received.count = (received.count or 0) + 1
        ngx.status = status or 200
        for name, value in pairs(headers or {}) do
            ngx.header[name] = value
        end
        ngx.print("answer")
    end
end

return function(run)
    local function it(name, body)
        run(name, function()
            ONE, TWO = app.alias("one"), app.alias("two")
            app.behavior = {}
            received = nil
            app.counts()
            body()
        end)
    end

    -- ── networks ──

    it("reads networks, and finds addresses in them", function()
        for network, addresses in pairs({
            ["10.0.0.0/8"] = { ["\10\1\2\3"] = true, ["\11\0\0\0"] = false },
            ["10.0.0.0/9"] = { ["\10\127\255\255"] = true, ["\10\128\0\0"] = false },
            ["192.168.7.1"] = { ["\192\168\7\1"] = true, ["\192\168\7\2"] = false },
            ["0.0.0.0/0"] = { ["\1\2\3\4"] = true, [("\0"):rep(15) .. "\1"] = false },
            ["::/0"] = { [("\0"):rep(15) .. "\1"] = true, ["\1\2\3\4"] = false },
            ["fd00::/7"] = { ["\253" .. ("\0"):rep(15)] = true, ["\254" .. ("\0"):rep(15)] = false },
        }) do
            for address, inside in pairs(addresses) do
                equal(networks.contain({ networks.parse(network) }, address), inside, network)
            end
        end
        local mapped = ("\0"):rep(10) .. "\255\255\10\0\0\1"
        equal(networks.contain({ networks.parse("10.0.0.0/8") }, mapped), true)
        for _, address in ipairs({ mapped, "\10\0\0\1" }) do
            equal(networks.contain({ networks.parse("::ffff:10.0.0.0/104") }, address), true)
            equal(networks.contain({ networks.parse("::ffff:10.0.0.1") }, address), true)
            equal(networks.contain({ networks.parse("::ffff:11.0.0.0/104") }, address), false)
        end
        equal(networks.contain({ networks.parse("10.0.0.0/8") }, ""), false)
        for _, text in ipairs({ "", "10.0.0.0/33", "::/129", "10.0.0/8", "a.test", "10.0.0.0/x", "10.0.0.0/-1" }) do
            equal(networks.parse(text), nil, text)
        end
    end)

    it("admits clients of allowed networks only, and never those of denied ones", function()
        put('{"access":{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16"]}}')
        equal(get("/", { ["X-Test-Address"] = "10.2.0.1" }).body, "one")
        for _, address in ipairs({ "10.1.0.1", "11.0.0.1", "::1" }) do
            equal(refused(get("/", { ["X-Test-Address"] = address })), { 403, "address_not_allowed" }, address)
        end
        equal(refused(get("/")), { 403, "address_not_allowed" })
        put('{"access":{"deny":["10.1.0.0/16"]}}')
        equal(get("/", { ["X-Test-Address"] = "11.0.0.1" }).body, "one")
    end)

    it("checks the address before a redirect", function()
        put('{"access":{"allow":["10.0.0.0/8"]},"https":"redirect"}')
        equal(refused(get("/")), { 403, "address_not_allowed" })
    end)

    -- ── passwords ──

    local BASIC = '{"access":{"basic":{"realm":"Stag\\"ing","users":{"ann":"' .. HASH .. '"}}}}'

    it("asks for a password, and keeps it from the instance", function()
        put(BASIC)
        app.behavior.one = record_request()
        local response = get("/")
        equal(refused(response), { 401, "unauthorized" })
        equal(response.headers["www-authenticate"], 'Basic realm="Staging", charset="UTF-8"')
        for _, text in ipairs({ "ann:wrong", "bob:secret", "ann", "ann:secret\0x", ":", "" }) do
            equal(refused(get("/", credentials(text))), { 401, "unauthorized" }, text)
        end
        for _, value in ipairs({ "Bearer x", "Basic %%%", "Basic" }) do
            equal(refused(get("/", { Authorization = value })), { 401, "unauthorized" }, value)
        end
        equal(received, nil)
        equal(get("/", credentials("ann:secret")).body, "answer")
        equal(received.authorization, nil)
    end)

    it("limits how many passwords are checked, but not those that are known", function()
        put(BASIC)
        equal(get("/", credentials("ann:secret")).status, 200)
        local statuses = {}
        for n = 1, 60 do
            local status = get("/", credentials("ann:" .. n)).status
            statuses[status] = (statuses[status] or 0) + 1
        end
        truthy(statuses[401] and statuses[429], json.string(tostring(statuses[401])))
        equal(get("/", credentials("ann:secret")).status, 200)
    end)

    it("keeps no address from logging in because another one guesses", function()
        put(BASIC)
        local function try(address, text)
            local headers = credentials(text)
            headers["X-Test-Address"] = address
            return get("/", headers).status
        end
        for n = 1, 60 do
            try("10.0.0.9", "ann:guess" .. n)
        end
        equal(try("10.0.0.9", "ann:another"), 429)
        equal(try("10.0.0.10", "ann:another"), 401)
    end)

    -- ── forward authentication ──

    local function forward(more, service)
        put('{"access":{"forward":{"service":"auth.test","path":"/verify?x=1","copy":["X-User"]' .. (more or "")
            .. "}}}")
        put(nil, "auth.test", service or { TWO })
    end

    it("asks an application, with a description of the request, and copies the headers of its answer", function()
        forward()
        app.behavior.two = record_request(200, { ["X-User"] = "ann", ["X-Other"] = "no" })
        local instance
        app.behavior.one = function()
            instance = ngx.req.get_headers()
            ngx.print("one")
        end
        local headers = { ["X-User"] = "forged", Cookie = "sid=1", ["X-Secret"] = "s" }
        headers["X-Test-Address"] = "10.2.0.1"
        equal(get("/a/b?c=d", headers, "DELETE").body, "one")
        equal(received.line, "GET /verify?x=1 HTTP/1.0")
        equal({ received.host, received["x-forwarded-method"], received["x-forwarded-uri"], received.cookie,
            received["x-forwarded-for"], received["x-forwarded-host"], received["x-secret"] },
            { "auth.test", "DELETE", "/a/b?c=d", "sid=1", "10.2.0.1", "app.test", nil })
        equal({ instance["x-user"], instance["x-other"] }, { "ann", nil })
        -- A header that the application does not send is not the client's either.
        app.behavior.two = record_request(204)
        equal(get("/", { ["X-User"] = "forged" }).body, "one")
        equal(instance["x-user"], nil)
    end)

    it("passes a rejection on, with its redirect and cookies", function()
        forward()
        app.behavior.two = record_request(302, { Location = "https://login.test/", ["Set-Cookie"] = { "a=1", "b=2" } })
        local response = get("/")
        equal({ response.status, response.headers.location, response.body },
            { 302, "https://login.test/", "answer" })
        equal(refused(response)[2], "access_denied")
        app.behavior.two = record_request(401, { ["WWW-Authenticate"] = "Bearer" })
        response = get("/")
        equal({ response.status, response.headers["www-authenticate"] }, { 401, "Bearer" })
        equal(app.counts().one, nil)
    end)

    it("fails closed: without an answer, no request passes", function()
        runner.allow_error(REFUSED)
        for name, behavior in pairs({
            status = app.status(500), close = app.close, slow = function() ngx.sleep(0.3) end,
            large = function() ngx.print(("x"):rep(70000)) end,
            endless = function() ngx.header["X-Long"] = ("x"):rep(40000) ngx.print("yes") end,
            dripping = function()
                for _ = 1, 20 do
                    ngx.print("x")
                    ngx.flush(true)
                    ngx.sleep(0.02)
                end
            end,
        }) do
            forward(',"timeout_ms":100')
            app.behavior.two = behavior
            equal(refused(get("/")), { 503, "access_unavailable" }, name)
            truthy(runner.logged("forward authentication failed at auth.test: "), name)
        end
        forward(nil, { app.alias("down") })
        equal(refused(get("/")), { 503, "access_unavailable" })
        forward(nil, {})
        for _, name in ipairs({ "auth.test", "*.test", "*" }) do
            routes.put(name, false)
        end
        equal(refused(get("/")), { 503, "access_unavailable" })
        equal(app.counts().one, nil)
    end)

    it("shows the application every line of a header, because the instance receives all of them", function()
        forward(',"send":["X-Tenant"]')
        app.behavior.two = record_request()
        get("/", { ["X-Tenant"] = "mine\r\nX-Tenant: theirs", Cookie = "a=1\r\nCookie: b=2" })
        equal({ received["x-tenant"], received.cookie }, { "mine, theirs", "a=1; b=2" })
    end)

    it("names the edge in its question, so that a policy cannot lead back to it without end", function()
        forward()
        app.behavior.two = record_request()
        get("/")
        equal(received["cdn-loop"], "signalbox-spec")
        get("/", { ["CDN-Loop"] = "other" })
        equal(received["cdn-loop"], "other, signalbox-spec")
    end)

    it("rejects with any status from 300 to 499, also without a body", function()
        forward()
        for _, status in ipairs({ 300, 304, 399, 400, 403, 404, 405, 413, 418, 419, 421, 429, 444, 494, 497, 499 }) do
            app.behavior.two = function()
                ngx.header["Content-Length"] = 0
                ngx.status = status
                ngx.send_headers()
            end
            local response = get("/")
            equal({ response.status, response.body }, { status, "" }, tostring(status))
        end
        equal(app.counts().one, nil)
    end)

    it("needs no body in an answer that cannot have one", function()
        forward(',"timeout_ms":300')
        app.behavior.two = function()
            ngx.status = 204
            ngx.header["Connection"] = "keep-alive"
            ngx.send_headers()
        end
        equal(get("/").body, "one")
    end)

    it("asks a second instance when the first does not answer", function()
        runner.allow_error(REFUSED)
        forward(nil, { app.alias("down"), TWO })
        for _ = 1, 4 do
            equal(get("/").body, "one")
        end
    end)

    it("keeps positive answers for equal requests only", function()
        forward(',"cache_seconds":60')
        local user = "ann"
        app.behavior.two = function()
            ngx.header["X-User"] = user
            ngx.print("yes")
        end
        app.behavior.one = function()
            ngx.print(ngx.var.http_x_user or "none")
        end
        equal(get("/kept", { Cookie = "sid=1" }).body, "ann")
        user = "bob"
        equal(get("/kept", { Cookie = "sid=1" }).body, "ann")
        equal(get("/kept", { Cookie = "sid=2" }).body, "bob")
        equal(get("/other", { Cookie = "sid=1" }).body, "bob")
        equal(get("/kept", { Cookie = "sid=1", ["X-Test-Address"] = "10.0.0.9" }).body, "bob")
        app.behavior.two = app.status(403)
        equal(get("/kept", { Cookie = "sid=3" }).status, 403)
        app.behavior.two = app.status(200)
        equal(get("/kept", { Cookie = "sid=3" }).status, 200)
    end)

    -- ── by path ──

    it("applies the access of a path in place of that of the host, to what the instance receives", function()
        put('{"access":{"deny":["0.0.0.0/0"]},"paths":[{"path":"/health","access":{}},'
            .. '{"path":"/team","access":{"forward":{"service":"auth.test"}},"strip":true}]}')
        put(nil, "auth.test", { TWO })
        local headers = { ["X-Test-Address"] = "10.0.0.1" }
        equal(get("/health", headers).body, "one")
        equal(get("/health/../x", headers).status, 403)
        app.behavior.two = record_request()
        equal(get("/%74eam//a%20b?c=d", headers).body, "one")
        equal(received["x-forwarded-uri"], "/team/a%20b?c=d")
    end)

    -- ── redirects ──

    it("redirects a host or a path, with the path of the client if wanted", function()
        put('{"redirect":{"to":"https://www.test","keep_path":true},"paths":[{"path":"/old",'
            .. '"redirect":{"to":"/new","status":302}}]}', nil, {})
        local response = get("/a%20b?c=d")
        equal({ response.status, response.headers.location }, { 308, "https://www.test/a%20b?c=d" })
        response = get("/old/x")
        equal(response.status, 302)
        truthy(response.headers.location:find("/new$"), response.headers.location)
        -- Kept for outages, without an instance.
        truthy(record.encode(record.make("app.test", {}, "17", '{"redirect":{"to":"https://www.test"}}')))
    end)

    -- ── policies that cannot be read ──

    it("permits nobody if the policy cannot be read", function()
        for _, access in ipairs({ "5", '{"allow":["x"]}', '{"allow":[]}', '{"basic":{"users":{}}}',
            '{"deny":"10.0.0.1"}', '{"basic":{"users":{"ann":"plain"}}}', '{"forward":{"service":"a b"}}',
            '{"forward":{}}', '{"allow":["127.0.0.1"],"certificate":{}}' }) do
            put('{"access":' .. access .. "}")
            truthy(runner.logged("invalid parts of the policy of app.test are ignored: access"), access)
            equal(refused(get("/")), { 503, "access_unavailable" }, access)
            put('{"paths":[{"path":"/x","access":' .. access .. "}]}")
            equal(refused(get("/x/y")), { 503, "access_unavailable" }, access)
            equal(get("/").body, "one")
        end
        put('{"paths":[{"path":"/x","service":"a b","access":{}}]}')
        equal(refused(get("/x/y")), { 503, "access_unavailable" })
    end)

    it("admits no client if a rule for a path, or the whole policy, cannot be read but has access rules", function()
        local denied = '"access":{"deny":["0.0.0.0/0"]}'
        for _, policy in ipairs({ '{"paths":[{"path":"x",' .. denied .. "}]}", "{" .. denied }) do
            put(policy)
            truthy(runner.logged("app.test"), policy)
            equal(refused(get("/")), { 503, "access_unavailable" }, policy)
        end
    end)

    it("ignores a redirect that is not valid", function()
        for _, to in ipairs({ '"//evil.test"', '"/\\\\evil.test"', '"ftp://a.test"', '"https://a b"', "5" }) do
            put('{"redirect":{"to":' .. to .. "}}")
            truthy(runner.logged("redirect.to"), to)
            equal(get("/").body, "one", to)
        end
    end)
end
