-- What usual.lua decides, next to what the pattern of log.conf decides for the same real requests.

local client = require("client")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local usual = require("signalbox.usual")
local equal, truthy = runner.equal, runner.truthy

local begin = usual.begin
-- Of the last request: what the pattern says, and what begin() decided.
local by_pattern, routed, host, id
-- Whether begin() runs before anything has evaluated the pattern.
local first

usual.begin = function()
    by_pattern = nil
    if not first then
        local pattern_host = ngx.var.edge_host
        by_pattern = { ngx.var.edge_name or "", pattern_host }
    end
    host = begin()
    routed, id = ngx.var.edge_hot == "1" and ngx.var.host or "", ngx.var.edge_new_id
    return host
end

local function ask(options)
    routed = nil
    client.raw(options)
    truthy(routed, "the request did not reach the location")
    if by_pattern then
        equal({ routed, host }, by_pattern)
    end
    return routed
end

return function(it)
    routes.put("app.test", record.make("app.test", { "unix:" .. ngx.config.prefix() .. "one.sock" }, "17", nil))

    it("accepts what almost all requests look like", function()
        for _, connection in ipairs({ "close", "Close", "keep-alive\r\nX-A: b\r\nConnection: close" }) do
            equal(ask({ connection = connection }), "app.test", connection)
        end
        equal(ask({ headers = { ["User-Agent"] = "x", ["X-Connection"] = "y", Cookies01 = "z" } }), "app.test")
    end)

    it("leaves ports, capital letters and a final dot to the pattern", function()
        local hosts = { ["app.test:80"] = "app.test:80", ["APP.test"] = "app.test", ["App.Test.:81"] = "app.test:81" }
        for given, sent in pairs(hosts) do
            equal(ask({ host = given }), "app.test", given)
            equal(host, sent)
        end
    end)

    it("rejects names that disagree, and invalid ports", function()
        equal(ask({ path = "http://app.test/", host = "other.test" }), "")
        equal(ask({ path = "http://other.test/", host = "app.test" }), "")
        equal(ask({ host = "app.test:65536" }), "")
        equal(ask({ host = "app.test:1x" }), "")
        equal(ask({ host = false }), "")
    end)

    it("rejects options of the connection, upgrades, and requests that have passed an edge", function()
        for _, connection in ipairs({ "close, x-a", "upgrade, close", "x-a\r\nX-B: c\r\nConnection: close" }) do
            equal(ask({ connection = connection }), "", connection)
        end
        equal(ask({ headers = { ["CDN-Loop"] = "another" } }), "")
        equal(ask({ headers = { ["cdn-LOOP"] = "signalbox-x" } }), "")
    end)

    it("reads each line of a repeated header", function()
        first = true
        for _, line in ipairs({ "close\r\nX-A: b\r\nConnection: x-a", "keep-alive\r\nconnection: Host, close" }) do
            equal(ask({ connection = line }), "", line)
        end
        equal(ask({ connection = "close\r\nCDN-Loop: a\r\nCDN-Loop: b" }), "")
        equal(ask({ connection = "close\r\nConnection: Close" }), "")
        first = false
    end)

    it("leaves gRPC, and IDs of the client, to the maps", function()
        ask({ headers = { ["X-Request-ID"] = "abc-12345678" } })
        equal(id, "abc-12345678")
        ask({ headers = { ["X-Request-ID"] = "no" } })
        truthy(id:find("^[0-9a-f]+$") and #id == 32, id)
        equal(ask({ headers = { ["Content-Type"] = "application/grpc" } }), "app.test")
        equal(ask({ headers = { ["Content-Type"] = "text/plain" } }), "app.test")
    end)

    it("finds a byte that is not UTF-8 at each place of a path, and accepts UTF-8", function()
        for size = 1, 26 do
            local path = "/" .. ("a"):rep(size - 1)
            equal(ask({ path = path }), "app.test", path)
            for at = 2, size do
                equal(ask({ path = path:sub(1, at - 1) .. "%ff" .. path:sub(at + 1) }), "")
            end
            equal(ask({ path = path .. "%c3%a9" }), "app.test")
        end
    end)

    it("leaves a request with more headers than it reads to the pattern", function()
        local headers = { ["CDN-Loop"] = "another" }
        for i = 1, 80 do
            headers["X-" .. i] = "x"
        end
        equal(ask({ headers = headers }), "")
        headers["CDN-Loop"] = nil
        equal(ask({ headers = headers }), "app.test")
    end)

    it("gives each request a new ID of 32 hexadecimal digits", function()
        local seen = {}
        for _ = 1, 600 do
            ask({})
            truthy(id:find("^" .. ("[0-9a-f]"):rep(32) .. "$"), id)
            truthy(not seen[id], "repeated: " .. id)
            seen[id] = true
        end
    end)
end
