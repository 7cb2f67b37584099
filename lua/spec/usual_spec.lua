-- What usual.lua decides, next to what the pattern of log.conf decides for the same real requests.

local client = require("client")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local usual = require("signalbox.usual")
local equal, truthy = runner.equal, runner.truthy

local begin = usual.begin
-- Of the last request: what the pattern says, what begin() returned, and the variables after it.
local by_pattern, returned, host, id

usual.begin = function()
    local pattern_host = ngx.var.edge_host
    by_pattern = { ngx.var.edge_name or "", pattern_host }
    returned = begin()
    host, id = ngx.var.edge_host, ngx.var.edge_new_id
    return returned
end

local function ask(options)
    by_pattern = nil
    client.raw(options)
    truthy(by_pattern, "the request did not reach the location")
    equal({ returned, host }, by_pattern)
    return returned
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
