-- Challenges of ACME servers, as they arrive at the edge.

local app = require("app")
local challenge = require("signalbox.challenge")
local client = require("client")
local follow = require("signalbox.follow")
local lookups = require("signalbox.lookups")
local redis = require("redis")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local FOLDER = "/.well-known/acme-challenge/"

local function get(path, options)
    local request = { host = "app.test", path = path }
    for name, value in pairs(options or {}) do
        request[name] = value
    end
    return client.request(request)
end

return function(it)
    it("answers a challenge of the table for every host and policy", function()
        truthy(challenge.serve, "the module")
        require("signalbox.ack").join()
        redis.start()
        redis.call("SET", "serial", "1")
        redis.put("app.test", { app.address("one") }, "17", '{"v":1,"https":"only","maintenance":{"status":503}}')
        redis.call("SET", "challenge:to-ken_1", "to-ken_1.thumb")
        follow.start(redis.address)
        runner.eventually("the table to be trusted", function() return lookups.trusted end)
        for _, host in ipairs({ "app.test", "unknown.test", "127.0.0.1" }) do
            local answer = get(FOLDER .. "to-ken_1", { host = host })
            equal({ answer.status, answer.body }, { 200, "to-ken_1.thumb" }, host)
        end
        equal(get(FOLDER .. "to-ken_1", { method = "HEAD" }).headers["content-length"], "14")
    end)

    it("treats everything else as a request of the host", function()
        for _, path in ipairs({
            FOLDER, FOLDER .. "to-ken_1?a", FOLDER .. "to-ken_1/", FOLDER .. "to-ken_1/..", FOLDER .. "%74o-ken_1",
            "/x/.." .. FOLDER .. "to-ken_1", "/" .. FOLDER .. "to-ken_1",
        }) do
            equal(get(path).status, 403, path)
            equal(get(path, { host = "unknown.test" }).status, 404, path)
        end
        for _, token in ipairs({ "unknown", ("a"):rep(257) }) do
            equal(get(FOLDER .. token, { host = "unknown.test" }).status, 404, token)
        end
        local posted = get(FOLDER .. "to-ken_1", { method = "POST", body = "a", host = "unknown.test" })
        equal(posted.status, 404)
    end)

    it("lets the host's own ACME client answer what the table does not have", function()
        redis.put("own.test", { app.address("one") }, "17", nil)
        runner.eventually("the instance to answer", function()
            return get("/", { host = "own.test" }).body == "one"
        end)
        equal(get(FOLDER .. "unknown", { host = "own.test" }).body, "one")
    end)

    it("does not wait for a replica that is gone", function()
        redis.crash()
        runner.eventually("the loss to be noticed", function() return not lookups.trusted end)
        equal(get(FOLDER .. "to-ken_1", { host = "own.test" }).body, "one")
    end)
end
