local client = require("client")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local function unlogged()
    return tonumber(client.request({ socket = "admin", path = "/edge/connections" }).headers["x-signalbox-unlogged"])
end

local function log_lines()
    local file = assert(io.open(ngx.config.prefix() .. "access.log"))
    local _, lines = file:read("*a"):gsub("\n", "")
    file:close()
    return lines
end

return function(it)
    it("counts each request without a log line once, its own included afterwards", function()
        local before = unlogged()
        equal(unlogged(), before + 1)
        client.request({ socket = "admin", path = "/edge/status" })
        equal(unlogged(), before + 3)
        equal(log_lines(), 0)
    end)

    it("does not count a request that has a log line", function()
        local before = unlogged()
        equal(client.request({ socket = "admin", path = "/instances" }).body, "pacemaker")
        equal(unlogged(), before + 1)
        truthy(log_lines() == 1, "the request is in the log")
    end)
end
