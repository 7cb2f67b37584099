-- Choosing with a whole policy. A table replaces the request's variables, because each test makes thousands of choices;
-- full_spec and guards_spec have real requests.

local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local vars = {}
local real_var = ngx.var
ngx.var = vars
local choose = require("signalbox.choose")
local outliers = require("signalbox.outliers")
local in_flight = require("signalbox.in_flight")
local record = require("signalbox.record")
local secret = require("signalbox.secret")
local sticky = require("signalbox.balance.sticky")
ngx.var = real_var
secret.set(("k"):rep(32))

local function hosts(n)
    local list = {}
    for i = 1, n do
        list[i] = "127.0.0.1:" .. 9000 + i
    end
    return list
end

local LIST = hosts(4)

local function counts(n, route)
    local seen = {}
    for _ = 1, n do
        local address = choose.first(route)
        seen[address] = (seen[address] or 0) + 1
    end
    return seen
end

local function made(policy, n)
    return record.make("x", hosts(n or 4), "17", policy)
end

local CANARY = '"log_keys":{"127.0.0.1:9003":"18","127.0.0.1:9004":"18"},'
    .. '"shares":[{"version_type":"17","percent":100},{"version_type":"18","percent":0}]'

return function(it)
    math.randomseed(runner.seed)

    it("uses the instances in turn, without those that are draining, unhealthy or of weight 0", function()
        equal(counts(400, made("{}")), { [LIST[1]] = 100, [LIST[2]] = 100, [LIST[3]] = 100, [LIST[4]] = 100 })
        equal(counts(300, made('{"draining":["127.0.0.1:9001"]}')),
            { [LIST[2]] = 100, [LIST[3]] = 100, [LIST[4]] = 100 })
        equal(counts(200, made('{"unhealthy":["127.0.0.1:9001","127.0.0.1:9002"]}')),
            { [LIST[3]] = 100, [LIST[4]] = 100 })
        equal(counts(300, made('{"weights":{"127.0.0.1:9001":0}}')),
            { [LIST[2]] = 100, [LIST[3]] = 100, [LIST[4]] = 100 })
        equal(counts(600, made('{"weights":{"127.0.0.1:9001":3}}')),
            { [LIST[1]] = 300, [LIST[2]] = 100, [LIST[3]] = 100, [LIST[4]] = 100 })
    end)

    it("fails open when more than half is unhealthy, and ignores weights that are all 0", function()
        local route = made('{"unhealthy":["127.0.0.1:9001","127.0.0.1:9002","127.0.0.1:9003"]}')
        truthy(route.fail_open, "fail open")
        equal(counts(400, route)[LIST[1]], 100)
        route = made('{"weights":{"127.0.0.1:9001":0,"127.0.0.1:9002":0}}', 2)
        equal(counts(200, route), { [LIST[1]] = 100, [LIST[2]] = 100 })
    end)

    it("has no instance when all are draining", function()
        local route = made('{"draining":["127.0.0.1:9001"]}', 1)
        equal(record.count(route), 0)
        truthy(not choose.has_session(route), "no session")
    end)

    it("lets a header or a cookie choose the version type, if that has an instance", function()
        local route = made("{" .. CANARY .. ',"shares_by":{"header":"X-Version","cookie":"version"}}')
        equal(counts(200, route), { [LIST[1]] = 100, [LIST[2]] = 100 })
        vars.http_x_version = "18"
        equal(counts(200, route), { [LIST[3]] = 100, [LIST[4]] = 100 })
        vars.http_x_version = "99"
        vars.cookie_version = "18"
        equal(counts(200, route), { [LIST[3]] = 100, [LIST[4]] = 100 })
        vars.http_x_version, vars.cookie_version = nil, nil
        equal(record.log_key(route, LIST[4]), "18")
        equal(record.log_key(route, LIST[1]), "17")
    end)

    it("lets listed values choose the version type, and no others", function()
        local by = ',"shares_by":{"header":"X-Tenant","values":{"acme":"18","other":17}}}'
        local route = made("{" .. CANARY .. by)
        vars.http_x_tenant = "acme"
        equal(counts(200, route), { [LIST[3]] = 100, [LIST[4]] = 100 })
        vars.http_x_tenant = "18"
        equal(counts(200, route), { [LIST[1]] = 100, [LIST[2]] = 100 })
        vars.http_x_tenant = nil
    end)

    it("brings a sticky client back while its instance may be used", function()
        local policy = '{"sticky":{"cookie":"s","ttl_seconds":60},"draining":["127.0.0.1:9004"]%s}'
        local route = made(policy:format(""))
        for i = 1, 4 do
            -- Even to the draining one, because sessions finish where they are.
            vars.cookie_s = sticky.value(route, LIST[i])
            equal(counts(10, route), { [LIST[i]] = 10 })
        end
        vars.cookie_s = sticky.value(route, LIST[1])
        equal(counts(30, made(policy:format(',"unhealthy":["127.0.0.1:9001"]')))[LIST[1]], nil)
        -- On standby, sessions have ended.
        vars.cookie_s = sticky.value(route, LIST[4])
        equal(counts(30, made(policy:format(',"standby":["127.0.0.1:9004"]')))[LIST[4]], nil)
        vars.cookie_s = sticky.value(route, LIST[1])
        -- Another host's cookie, a forged one, and garbage are ignored.
        local other = record.make("y", hosts(4), "17", policy:format(""))
        truthy(sticky.value(other, LIST[1]) ~= sticky.value(route, LIST[1]), "another host, another value")
        equal(counts(300, other), { [LIST[1]] = 100, [LIST[2]] = 100, [LIST[3]] = 100 })
        vars.cookie_s = "127.0.0.1:9001"
        equal(counts(300, route)[LIST[1]], 100)
        vars.cookie_s = nil
    end)

    it("makes the cookie that the pacemaker reads in explain", function()
        -- The same value is in choice/session.rs.
        local route = record.make("app.test", hosts(4), "17", '{"sticky":{"cookie":"s"}}')
        equal(sticky.value(route, LIST[1]), "xzhq7zxC.QBytucyVlXluOVWy")
    end)

    it("does not reveal the address in the cookie", function()
        local route = made('{"sticky":{"cookie":"s","ttl_seconds":60}}')
        local cookie = sticky.cookie(route, LIST[1], true)
        truthy(not cookie:find("127", 1, true) and not cookie:find("9001", 1, true), cookie)
        truthy(cookie:find("^s=[%w_-]+%.[%w_-]+; Path=/; HttpOnly; SameSite=Lax; Max%-Age=60; Secure$"), cookie)
        secret.set(("z"):rep(32))
        truthy(sticky.value(made('{"sticky":{"cookie":"s"}}'), LIST[1]) ~= sticky.value(route, LIST[1]), "keyed")
        secret.set(("k"):rep(32))
    end)

    it("keeps a sticky client on its version type, and moves it when the type is gone", function()
        local before = made('{"sticky":{"cookie":"s"},"log_keys":{"127.0.0.1:9003":"18","127.0.0.1:9004":"18"},'
            .. '"shares":[{"version_type":"17","percent":99},{"version_type":"18","percent":1}]}')
        vars.cookie_s = sticky.value(before, LIST[4])
        local after = record.make("x", hosts(3), "17", before.policy)
        equal(counts(50, after), { [LIST[3]] = 50 })
        local ended = made('{"sticky":{"cookie":"s"},' .. CANARY .. "}")
        equal(counts(200, ended), { [LIST[1]] = 100, [LIST[2]] = 100 })
        vars.cookie_s = nil
    end)

    it("starts slowly at an instance that has just joined", function()
        local now_ms = math.floor(ngx.now() * 1000)
        local route = made(('{"joined":{"127.0.0.1:9001":%d},"slow_start_ms":3600000}'):format(now_ms))
        local seen = counts(310, route)
        truthy(seen[LIST[1]] >= 9 and seen[LIST[1]] <= 11, "a tenth of its part, not " .. seen[LIST[1]])
        equal(counts(400, made('{"joined":{"127.0.0.1:9001":1},"slow_start_ms":1000}'))[LIST[1]], 100)
    end)

    it("hashes by header, and uses all instances in turn for a client without it", function()
        local route = made('{"balance":{"algorithm":"hash","header":"X-User"}}')
        equal(counts(400, route)[LIST[1]], 100)
        for i = 1, 20 do
            vars.http_x_user = "user" .. i
            local seen, n = counts(5, route), 0
            for _ in pairs(seen) do n = n + 1 end
            equal(n, 1)
        end
        vars.http_x_user = nil
    end)

    it("p2c prefers the instance with fewer requests in flight", function()
        local route = made('{"balance":{"algorithm":"p2c"}}', 2)
        in_flight.begin(LIST[1])
        equal(counts(50, route), { [LIST[2]] = 50 })
        in_flight.finish(LIST[1])
        in_flight.finish(LIST[1])
        equal(in_flight.of(LIST[1]), 0)
    end)

    it("publishes requests in flight by address, without idle addresses", function()
        in_flight.begin(LIST[1])
        in_flight.begin(LIST[1])
        in_flight.begin("unix:/run/app.sock")
        in_flight.publish()
        equal(in_flight.everywhere(), { [LIST[1]] = 2, ["unix:/run/app.sock"] = 1 })
        equal(in_flight.sum(), 3)
        in_flight.finish(LIST[1])
        in_flight.finish(LIST[1])
        in_flight.finish("unix:/run/app.sock")
        in_flight.publish()
        equal(in_flight.everywhere(), {})
    end)

    it("survives any invalid value in a policy", function()
        local junk = { "null", "true", "5", '"x"', "[]", "{}", '{"a":null}', '["a",1,null]', "[[1]]", "-1", "1e300" }
        local names = { "log_keys", "draining", "standby", "weights", "unhealthy", "joined", "slow_start_ms", "balance",
            "shares", "shares_by", "sticky", "retries", "ejection", "hold_ms", "timeouts", "limits", "methods",
            "headers", "maintenance", "https", "upstream", "body_bytes", "target_header", "default_page" }
        for _, name in ipairs(names) do
            for _, value in ipairs(junk) do
                local seen = counts(40, made('{"' .. name .. '":' .. value .. "}"))
                for i = 1, 4 do
                    equal(seen[LIST[i]], 10, name .. " = " .. value)
                end
            end
        end
    end)

    it("retries within the version type first, then anywhere, then reports that all were tried", function()
        local route = made("{" .. CANARY .. "}")
        local tried = { [LIST[1]] = true }
        equal({ choose.another(route, tried, LIST[1]) }, { LIST[2], false })
        tried[LIST[2]] = true
        local third = choose.another(route, tried, LIST[2])
        truthy(third == LIST[3] or third == LIST[4], third)
        tried[LIST[3]], tried[LIST[4]] = true, true
        equal(select(2, choose.another(route, tried, LIST[4])), true)
        truthy(not outliers.any(), "none was ejected here")
    end)
end
