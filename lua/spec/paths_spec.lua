-- Rules for paths: which one applies, and what instances receive, by real requests through nginx.

local app = require("app")
local client = require("client")
local full = require("signalbox.full")
local json = require("signalbox.json")
local lookups = require("signalbox.lookups")
local paths = require("signalbox.paths")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local equal, truthy = runner.equal, runner.truthy

secret.set(("k"):rep(32))
lookups.trusted = true

-- How many requests left the hot path.
local left = 0
local access = full.access
function full.access()
    left = left + 1
    return access()
end

local function put(name, addresses, policy)
    routes.put(name, record.make(name, addresses, name, policy))
end

local function log_line()
    local file = assert(io.open(ngx.config.prefix() .. "access.log"))
    local text = file:read("*a")
    file:close()
    return json.decode(text:match("([^\n]*)\n$"))
end

local function get(path, options)
    options = options or {}
    options.path = path
    return client.request(options)
end

-- The body of the answer, and whether the request stayed on the hot path.
local function answer(path)
    left = 0
    local response = get(path)
    return { response.body, left == 0 }
end

local function refused(response)
    return { response.status, response.headers["x-signalbox-error"] }
end

-- An application that answers with the request line that it received.
local function echo()
    ngx.print(ngx.var.request_uri)
end

local RULES = [[{"paths":[{"path":"/api","service":"api.test"},{"path":"/api/v2","service":"v2.test"},
    {"path":"/api/v2","match":"exact","service":"api.test"},{"path":"/old","service":"v2.test","strip":true}]}]]

return function(run)
    local ONE, TWO, DOWN
    local function it(name, body)
        run(name, function()
            ONE, TWO, DOWN = app.alias("one"), app.alias("two"), app.alias("down")
            app.behavior = {}
            put("app.test", { DOWN }, RULES)
            put("api.test", { ONE })
            put("v2.test", { TWO })
            body()
        end)
    end

    -- ── which rule applies ──

    local function rule(path, ...)
        local list = {}
        for _, one in ipairs({ ... }) do
            list[#list + 1] = { path = one:gsub("=", ""), exact = one:sub(1, 1) == "=" }
        end
        local found = paths.find(paths.compile(list), path)
        return found and (found.exact and "=" or "") .. found.path
    end

    it("applies the longest prefix that ends at a slash, and an exact rule first", function()
        for path, expected in pairs({
            ["/"] = "/", ["/apix"] = "/", ["/api"] = "/api", ["/api/"] = "/api", ["/api/v1"] = "/api",
            ["/api/v2"] = "=/api/v2", ["/api/v2/"] = "/api/v2", ["/api/v2/x/y"] = "/api/v2", ["/API"] = "/",
        }) do
            equal(rule(path, "/", "/api", "/api/v2", "=/api/v2"), expected, path)
        end
        equal(rule("/other", "/api", "=/"), nil)
        equal(rule("/", "/api", "=/"), "=/")
    end)

    it("agrees with a search through all prefixes", function()
        local words = { "a", "b", "ab", "a.b" }
        local function some(n)
            local parts = {}
            for i = 1, n do
                parts[i] = words[math.random(#words)]
            end
            return "/" .. table.concat(parts, "/")
        end
        for _ = 1, 300 do
            local list, best = {}, nil
            local path = some(math.random(0, 5))
            for _ = 1, math.random(0, 12) do
                list[#list + 1] = some(math.random(0, 4))
            end
            for _, prefix in ipairs(list) do
                local covers = prefix == "/" or path == prefix or path:sub(1, #prefix + 1) == prefix .. "/"
                if covers and #prefix > #(best or "") then
                    best = prefix
                end
            end
            equal(rule(path, unpack(list)), best, path .. " in " .. table.concat(list, " "))
        end
    end)

    it("matches without parameters of segments, and not at all if they hide dots or slashes", function()
        equal(paths.matched("/a;x=1/b;y/c"), "/a/b/c")
        for _, path in ipairs({ "/a/..;/b", "/a/.;x/b", "/a/;x/b", "/a/..;x", "/a\\b", "/a\nb", "/a/.;" }) do
            equal(paths.matched(path), nil, path)
        end
    end)

    -- ── what is sent ──

    it("leads paths to other hosts on the hot path, and counts them there", function()
        equal(answer("/api/x?q=/old"), { "one", true })
        equal(log_line().key, "api.test")
        equal(answer("/api/v2/x"), { "two", true })
        equal(answer("/api/v2"), { "one", true })
        put("app.test", { ONE }, RULES)
        equal(answer("/apix"), { "one", true })
        equal(log_line().key, "app.test")
    end)

    it("sends the path that it checked", function()
        app.behavior.one, app.behavior.two = echo, echo
        for sent, received in pairs({
            ["/api/%2e%2e/api/x"] = "/api/x", ["//api///x"] = "/api/x", ["/x/../api/x?a=%2f"] = "/api/x?a=%2f",
            ["/%61pi/x"] = "/api/x", ["/api%2fx"] = "/api/x", ["/api/%252e%252e/x"] = "/api/%252e%252e/x",
            ["/api/x%20y%3Fz"] = "/api/x%20y%3Fz", ["/api/a;b=1/c"] = "/api/a;b=1/c", ["/api;v=2/x"] = "/api;v=2/x",
            ["http://app.test/api/./x"] = "/api/x", ["/api/x"] = "/api/x", ["/api?"] = "/api?",
        }) do
            local response = get(sent)
            equal({ response.status, response.body }, { 200, received }, sent)
            equal(log_line().key, "api.test", sent)
        end
        equal(get("/api/v2/..%2f..%2fapi/v2/x").body, "/api/v2/x")
        equal(log_line().key, "v2.test")
    end)

    it("rejects a path that applications read in different ways", function()
        for _, path in ipairs({ "/api/..;/admin", "/api/;/x", "/api%5c..%5cx", "/api/%0ax", "/old;v=1/x" }) do
            equal(refused(get(path)), { 400, "ambiguous_path" }, path)
        end
    end)

    it("removes a prefix, names it, and logs the path of the client", function()
        app.behavior.two = function()
            ngx.print(ngx.var.request_uri, " ", ngx.var.http_x_forwarded_prefix or "none")
        end
        equal(get("/old/a%20b?c=d", { headers = { ["X-Forwarded-Prefix"] = "/forged" } }).body, "/a%20b?c=d /old")
        equal(log_line().uri, "/old/a b")
        equal(get("/old").body, "/ /old")
        put("v2.test", { ONE })
        app.behavior.one = app.behavior.two
        put("app.test", {}, '{"paths":[{"path":"/","service":"v2.test"}]}')
        equal(get("/x", { headers = { ["X-Forwarded-Prefix"] = "/forged" } }).body, "/x none")
    end)

    -- ── failures ──

    it("retries at the other instances of the service, with the same path", function()
        runner.expect_error("failed (2: No such file or directory) while connecting to upstream")
        app.behavior.two = echo
        put("v2.test", { DOWN, TWO })
        for _ = 1, 4 do
            equal(get("/old/api/v2/x").body, "/api/v2/x")
            equal(get("/api/v2/x").body, "/api/v2/x")
        end
    end)

    it("decides once: a path is not matched again after its prefix was removed", function()
        runner.expect_error("failed (2: No such file or directory) while connecting to upstream")
        put("v2.test", { DOWN })
        -- After all tries failed, /old/api is still not /api.
        equal(refused(get("/old/api/x")), { 502, "connect_failed" })
        equal(log_line().key, "v2.test")
        put("v2.test", {}, '{"hold_ms":50}')
        equal(refused(get("/old/api/x")), { 503, "no_instance" })
    end)

    it("answers 503 for a service that does not exist", function()
        for _, name in ipairs({ "v2.test", "*.test", "*" }) do
            routes.put(name, false)
        end
        equal(refused(get("/api/v2/x")), { 503, "no_instance" })
        equal(log_line().key, "app.test")
        equal(get("/api/v1").body, "one")
    end)

    it("does not follow rules of the service", function()
        put("api.test", { ONE }, '{"paths":[{"path":"/","service":"app.test"}]}')
        equal(answer("/api/x"), { "one", true })
    end)

    -- ── policies ──

    it("applies the limits of the host that the client asks for, and the choice of the service", function()
        put("app.test", {}, RULES:gsub("^{", '{"methods":["GET"],'))
        put("api.test", { ONE }, '{"maintenance":{},"sticky":{"cookie":"s"}}')
        local response = get("/api/x")
        equal({ response.status, response.body }, { 200, "one" })
        truthy(response.headers["set-cookie"]:find("; Path=/api; ", 1, true), response.headers["set-cookie"])
        equal(refused(get("/api/x", { method = "POST" })), { 405, "method_not_allowed" })
    end)

    it("changes response headers by the policy of the host that the client asks for", function()
        local rules = RULES:gsub("^{", '{"headers":{"response":{"set":{"X-Host":"asked"}}},')
        put("app.test", {}, rules)
        put("api.test", { ONE }, '{"headers":{"response":{"set":{"X-Host":"service"}}}}')
        equal(get("/api/x").headers["x-host"], "asked")
    end)

    -- ── records ──

    it("keeps a host without instances for outages if it has paths", function()
        local text = record.encode(record.make("app.test", {}, "17", RULES))
        truthy(record.decode("app.test", text).rules.paths)
        equal(record.encode(record.make("app.test", {}, "17", '{"hold_ms":5}')), nil)
    end)

    it("ignores rules that are not valid, with a warning", function()
        for _, one in ipairs({
            '{"path":"api","service":"a.test"}', '{"path":"/a//b","service":"a.test"}', '{"path":"/a"}',
            '{"path":"/a/../b","service":"a.test"}', '{"path":"/a%20","service":"a.test"}',
            '{"path":"/a","service":"a b"}', '{"path":"/a","service":"a.test","match":"regex"}',
            '{"path":"/a?","service":"a.test"}', '{"path":"/a","service":"a.test","strip":1}', "5",
        }) do
            local rules = record.make("app.test", { ONE }, "17", '{"paths":[' .. one .. "]}").rules
            truthy(runner.logged("paths.1"), one)
            equal(rules.paths and rules.paths.exact, one:find("strip", 1, true) and {} or nil, one)
        end
    end)
end
