-- Limits, with a clock that the spec sets. A table replaces the request's variables, because a limit is checked
-- thousands of times at chosen moments here; guards_spec has real requests.

local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local real_var = ngx.var
local clock, vars = 1000, { binary_remote_addr = "\127\0\0\1" }
package.loaded["signalbox.clock"] = { now = function() return clock end }
ngx.var = vars
local limits = require("signalbox.limits")
ngx.var = real_var

-- How many of `n` requests, `pause` seconds apart, pass.
local function passed(name, rules, n, pause)
    local count = 0
    for _ = 1, n do
        count = count + (limits.request(name, rules) == nil and 1 or 0)
        clock = clock + pause
    end
    return count
end

return function(it)
    it("lets a burst pass immediately, then the rate", function()
        local rules = { rate = 10, burst = 5, rate_by = false }
        equal(passed("a", rules, 100, 0), 6)
        -- The first of these arrives at the same moment.
        equal(passed("a", rules, 100, 0.1), 99)
        equal(passed("a", rules, 200, 0.05), 100)
        -- After a pause the burst is available again, and no more than that.
        clock = clock + 1000
        equal(passed("a", rules, 100, 0), 6)
    end)

    it("counts IPv4 clients of a listener for both families like those of an IPv4 listener", function()
        local mapped = ("\0"):rep(10) .. "\255\255"
        equal(limits.key_of_address(mapped .. "\1\2\3\4"), limits.key_of_address("\1\2\3\4"))
        truthy(limits.key_of_address(mapped .. "\1\2\3\4") ~= limits.key_of_address(mapped .. "\1\2\3\5"))
        truthy(limits.key_of_address(("\0"):rep(15) .. "\1") ~= limits.key_of_address("\0\0\0\1"), "::1")
    end)

    it("forgets what a client used under another limit", function()
        equal(passed("raised", { rate = 1, burst = 60, rate_by = false }, 70, 0), 61)
        equal(passed("raised", { rate = 100, burst = 5, rate_by = false }, 70, 0), 6)
    end)

    it("keeps the rate over a long time, whatever the pattern", function()
        math.randomseed(runner.seed)
        local rules = { rate = 7, burst = 3, rate_by = false }
        local began, count = clock, 0
        for _ = 1, 20000 do
            count = count + (limits.request("b", rules) == nil and 1 or 0)
            clock = clock + math.random() * 0.1
        end
        local most = (clock - began) * 7 + 4
        truthy(count <= most + 1 and count >= most * 0.98 - 20, count .. " of at most " .. most)
    end)

    it("returns the exact time after which a request passes", function()
        local rules = { rate = 0.5, burst = 0, rate_by = false }
        equal(limits.request("c", rules), nil)
        local wait = limits.request("c", rules)
        equal(wait, 2)
        clock = clock + wait
        equal(limits.request("c", rules), nil)
    end)

    it("counts clients separately by address, IPv6 /64 or header, and together by host", function()
        local rules = { rate = 0.001, burst = 0, rate_by = "address" }
        vars.binary_remote_addr = "\1\2\3\4"
        equal(limits.request("d", rules), nil)
        truthy(limits.request("d", rules), "the same")
        vars.binary_remote_addr = "\1\2\3\5"
        equal(limits.request("d", rules), nil)
        vars.binary_remote_addr = "\32\1" .. ("\0"):rep(14)
        equal(limits.request("d", rules), nil)
        vars.binary_remote_addr = "\32\1" .. ("\0"):rep(13) .. "\9"
        truthy(limits.request("d", rules), "another address of the same network")
        vars.http_x_key = ("long"):rep(100)
        equal(limits.request("d", { rate = 0.001, burst = 0, rate_by = "http_x_key" }), nil)
        truthy(limits.request("d", { rate = 0.001, burst = 0, rate_by = "http_x_key" }), "the same key")
        vars.http_x_key = nil
        equal(limits.request("e", { rate = 0.001, burst = 0, rate_by = false }), nil)
    end)

    it("counts a header for each address separately, if both are named", function()
        local rules = { rate = 0.001, burst = 0, rate_by = "http_x_key", rate_by_address = true,
            max_connections = 1, connections_by = "http_x_key", connections_by_address = true }
        local function is_limited(address, key)
            vars.binary_remote_addr, vars.http_x_key = address, key
            local limited, claim = limits.request("both", rules) ~= nil, limits.claim("both", rules)
            equal(claim == nil, limited)
            return limited
        end
        equal(is_limited("\1\2\3\4", "key"), false)
        equal(is_limited("\1\2\3\4", "key"), true)
        -- A stranger that knows the key uses up a limit of its own.
        equal(is_limited("\9\9\9\9", "key"), false)
        equal(is_limited("\1\2\3\4", "other"), false)
        vars.http_x_key = nil
    end)

    it("takes back a claim, and never counts below zero", function()
        local rules = { max_connections = 2, connections_by = false }
        local one, two = limits.claim("f", rules), limits.claim("f", rules)
        truthy(one and two, "two may")
        equal(limits.claim("f", rules), nil)
        limits.release(one)
        truthy(limits.claim("f", rules), "free again")
        for _ = 1, 5 do
            limits.release(one)
        end
        truthy(limits.claim("f", rules) and limits.claim("f", rules), "two may")
        equal(limits.claim("f", rules), nil)
    end)


    it("evicts no client when the memory is full", function()
        local rules = { rate = 0.001, burst = 0, rate_by = false, max_connections = 1, connections_by = false }
        equal(limits.request("kept", rules), nil)
        truthy(limits.claim("kept", rules), "one may")
        for i = 1, 30000 do
            limits.request("flood" .. i, rules)
            limits.claim("flood" .. i, rules)
        end
        truthy(limits.request("kept", rules), "the rate is still limited")
        equal(limits.claim("kept", rules), nil)
        truthy(runner.logged("the memory for limits is full"), "a warning")
    end)
end
