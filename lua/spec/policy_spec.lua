-- Reading a policy: every part takes what is valid, and refuses the rest with a warning.

local failure = require("signalbox.policy.failure")
local cjson = require("cjson.safe")
local policy = require("signalbox.policy")
local record = require("signalbox.record")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local A, B = "127.0.0.1:9001", "127.0.0.1:9002"

local function read(text)
    return policy.read("app.test", text)
end

-- Fails unless the policy is refused at `place`, with a warning about the form that it must have.
local function refused(text, place)
    read(text)
    truthy(runner.logged("invalid parts of the policy of app.test are ignored: " .. place .. " must be "),
        text .. " is refused at " .. place)
end

return function(it)
    it("has rules for a text that is not a JSON object", function()
        for _, text in ipairs({ "", "nonsense", "[1", "5", '"text"', "null" }) do
            equal(read(text), read("{}"), text)
        end
        truthy(runner.logged("the policy of app.test is not a JSON object and is ignored"), "a warning")
    end)

    it("ignores unknown parts without a warning", function()
        equal(read('{"later":{"a":[1]},"balance":{"new":1}}'), read("{}"))
        truthy(not runner.logged("are ignored"), "no warning")
    end)

    it("ignores invalid parts only, and counts them in one warning", function()
        local rules = read(([[{"slow_start_ms":0,"weights":{"%s":-1,"%s":2},"hold_ms":"x"}]]):format(A, B))
        equal(rules.weights, { [B] = 2 })
        truthy(runner.logged("(and 2 more)"), "a warning")
    end)

    -- ── balance.lua ──

    it("reads the instances' weights, version types and states", function()
        local rules = read(([[{"weights":{"%s":2.5},"log_keys":{"%s":17,"%s":"18"},"draining":["%s"],
            "unhealthy":["%s"],"joined":{"%s":1000},"slow_start_ms":500}]]):format(A, A, B, A, B, A))
        equal({ rules.weights, rules.log_keys, rules.draining, rules.unhealthy, rules.joined, rules.slow_start_ms },
            { { [A] = 2.5 }, { [A] = "17", [B] = "18" }, { [A] = true }, { [B] = true }, { [A] = 1000 }, 500 })
        refused('{"weights":{"a":1001}}', "weights.a")
        refused('{"log_keys":{"a":[]}}', "log_keys.a")
        refused('{"draining":"a"}', "draining")
        refused('{"unhealthy":[5]}', "unhealthy")
        refused('{"slow_start_ms":1e300}', "slow_start_ms")
    end)

    it("reads the algorithm, and what a hash is computed from", function()
        equal({ read("{}").algorithm, read('{"balance":{"algorithm":"p2c"}}').algorithm }, { "round_robin", "p2c" })
        for by, variable in pairs({ ['"header":"X-User-Id"'] = "http_x_user_id", ['"cookie":"Sid"'] = "cookie_Sid",
            ['"address":true'] = "remote_addr" }) do
            local rules = read('{"balance":{"algorithm":"hash",' .. by .. "}}")
            equal({ rules.algorithm, rules.hash_by }, { "hash", variable })
        end
        equal(read('{"balance":{"algorithm":"hash"}}').algorithm, "round_robin")
        refused('{"balance":{"algorithm":"hash"}}', "balance")
        refused('{"balance":{"algorithm":"least"}}', "balance.algorithm")
        refused('{"balance":{"algorithm":"hash","header":"X User"}}', "balance.header")
    end)

    it("reads shares, and the header and cookie that choose one", function()
        local rules = read([[{"shares":[{"version_type":17,"percent":95},{"version_type":"18","percent":5}],
            "shares_by":{"header":"X-Version","cookie":"v"}}]])
        equal({ rules.shares, rules.shares_header, rules.shares_cookie },
            { { { "17", 95 }, { "18", 5 } }, "http_x_version", "cookie_v" })
        equal(read('{"shares":[{"version_type":"17","percent":0}]}').shares, nil)
        refused('{"shares":[{"version_type":"17","percent":101}]}', "shares[].percent")
        refused('{"shares":[{"percent":1}]}', "shares")
    end)

    it("reads sticky sessions", function()
        local rules = read('{"sticky":{"cookie":"sid","ttl_seconds":60}}')
        equal({ rules.sticky, rules.sticky_variable, rules.sticky_ttl }, { "sid", "cookie_sid", 60 })
        rules = read('{"sticky":{}}')
        equal({ rules.sticky, rules.sticky_variable, rules.sticky_ttl }, { "signalbox", "cookie_signalbox" })
        refused('{"sticky":{"ttl_seconds":1.5}}', "sticky.ttl_seconds")
    end)

    -- ── failure.lua ──

    it("has defaults for retries and ejection, and switches ejection off", function()
        local rules = read("{}")
        equal({ rules.attempts, rules.budget_percent, rules.retry_timeout, rules.ejection },
            { nil, failure.RETRIES.budget_percent, nil, failure.EJECTION })
        equal(read('{"ejection":false}').ejection, nil)
        equal(read('{"ejection":{"failures":3}}').ejection, { failures = 3, first_ms = failure.EJECTION.first_ms,
            longest_ms = failure.EJECTION.longest_ms })
    end)

    it("reads retries, holding and timeouts", function()
        local rules = read([[{"retries":{"attempts":3,"budget_percent":0,"timeout_ms":100},"hold_ms":5000,
            "timeouts":{"connect_ms":1500,"read_ms":250}}]])
        equal({ rules.attempts, rules.budget_percent, rules.retry_timeout, rules.hold_ms }, { 3, 0, 100, 5000 })
        equal({ rules.timeouts, rules.connect_timeout, rules.read_timeout, rules.send_timeout }, { true, 1.5, 0.25 })
        equal(read('{"timeouts":{}}').timeouts, false)
        refused('{"retries":{"attempts":0}}', "retries.attempts")
        refused('{"retries":{"budget_percent":101}}', "retries.budget_percent")
        refused('{"hold_ms":60001}', "hold_ms")
        refused('{"timeouts":{"send_ms":0}}', "timeouts.send_ms")
        refused('{"ejection":{"failures":1.5}}', "ejection.failures")
    end)

    -- ── guards.lua ──

    it("checks a request only when the policy has a guard", function()
        equal(read("{}").guarded, false)
        for _, text in ipairs({ '"limits":{"requests":{"per_second":1}}', '"limits":{"connections":{"most":1}}',
            '"body_bytes":0', '"methods":["GET"]', '"headers":{"request":{"remove":["X-A"]}}', '"maintenance":{}',
            '"https":"redirect"', '"target_header":true' }) do
            equal(read("{" .. text .. "}").guarded, true, text)
        end
        equal(read('{"https":"any","headers":{"response":{"remove":["X-A"]}}}').guarded, false)
    end)

    it("reads limits, and what they count separately", function()
        local rules = read([[{"limits":{"requests":{"per_second":10,"burst":3,"by":{"header":"X-Key"}},
            "connections":{"most":5,"by":"host"}}}]])
        equal({ rules.rate, rules.burst, rules.rate_by, rules.max_connections, rules.connections_by },
            { 10, 3, "http_x_key", 5, false })
        rules = read('{"limits":{"requests":{"per_second":10},"connections":{"most":5}}}')
        equal({ rules.burst, rules.rate_by, rules.connections_by }, { 10, "address", "address" })
        rules = read('{"limits":{"requests":{"per_second":1,"by":{"header":"X-Key","address":true}}}}')
        equal({ rules.rate_by, rules.rate_by_address }, { "http_x_key", true })
        refused('{"limits":{"requests":{"per_second":1,"by":{"header":"X-Key","address":1}}}}',
            "limits.requests.by.address")
        refused('{"limits":{"requests":{"per_second":0}}}', "limits.requests.per_second")
        refused('{"limits":{"requests":{"per_second":1,"by":"cookie"}}}', "limits.requests.by")
        refused('{"limits":{"connections":{"most":0}}}', "limits.connections.most")
    end)

    it("reads methods, HEAD with GET", function()
        local rules = read('{"methods":["post","GET"]}')
        equal({ rules.methods, rules.allow }, { { POST = true, GET = true, HEAD = true }, "GET, HEAD, POST" })
        equal(read('{"methods":[]}').methods, nil)
        refused('{"methods":["GET","B AD"]}', "methods")
    end)

    it("refuses a header that the edge itself sets, or that would split a message", function()
        local rules = read([[{"headers":{"request":{"set":{"Host":"a","connection":"b","X-A":"c",
            "X-Forwarded-For":"d","Bad Name":"e","X-B":"f\r\ng","Content-Length":"1","X-Signalbox-Target":"h"},
            "remove":["X-C","Host",5,"X-Request-ID"]}}}]])
        table.sort(rules.request_headers, function(a, b) return a[1] < b[1] end)
        equal(rules.request_headers, { { "X-A", "c" }, { "X-C", false } })
        refused('{"headers":{"response":{"set":{"Transfer-Encoding":"x"}}}}', "headers.response.set")
    end)

    it("reads maintenance with its exception", function()
        local given = read([[{"maintenance":{"status":200,"body":"soon","content_type":"text/html","retry_after":60,
            "except_header":{"name":"X-Preview","value":"yes"}}}]]).maintenance
        equal(given, { status = 200, body = "soon", content_type = "text/html", retry_after = 60,
            except = "http_x_preview", except_value = "yes" })
        equal(read('{"maintenance":{}}').maintenance, { status = 503, content_type = "text/plain; charset=utf-8" })
        refused('{"maintenance":{"status":199}}', "maintenance.status")
        refused('{"maintenance":{"content_type":"a\\nb"}}', "maintenance.content_type")
    end)

    it("reads how an instance is reached, verified unless switched off", function()
        local rules = read('{"upstream":{"tls":true,"server_name":"app.internal"}}')
        equal({ rules.tls, rules.verify, rules.server_name, rules.grpc }, { true, true, "app.internal", false })
        rules = read('{"upstream":{"tls":true,"verify":false,"protocol":"grpc"}}')
        equal({ rules.verify, rules.grpc }, { false, true })
        equal(read('{"upstream":{"verify":null}}').verify, true)
        refused('{"upstream":{"server_name":"a b"}}', "upstream.server_name")
        refused('{"upstream":{"protocol":"ftp"}}', "upstream.protocol")
        refused('{"upstream":{"tls":1}}', "upstream.tls")
        refused('{"https":"yes"}', "https")
        refused('{"body_bytes":-1}', "body_bytes")
    end)

    -- ── the rules that the pacemaker checks, too ──

    -- crates/route-table/src/policy reads the same file.
    local folder = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$")
    local file = assert(io.open(folder .. "/../../tests/policy_rules.json"))
    local rules = assert(cjson.decode(file:read("*a")))
    file:close()

    local function with(template, value)
        return (cjson.encode(template):gsub('"VALUE"', ("%.17g"):format(value)))
    end

    it("has the ranges that the pacemaker checks", function()
        for _, range in ipairs(rules.ranges) do
            for _, value in ipairs(range.accepted) do
                read(with(range.policy, value))
            end
        end
        truthy(not runner.logged("are ignored"), "no warning about accepted values")
        for _, range in ipairs(rules.ranges) do
            for _, value in ipairs(range.rejected) do
                refused(with(range.policy, value), range.field)
            end
        end
    end)

    it("reserves the headers that the pacemaker reserves", function()
        for _, name in ipairs(rules.reserved_headers) do
            refused(([[{"headers":{"request":{"remove":["%s"]}}}]]):format(name), "headers.request.remove")
        end
    end)

    it("has the hot path that the pacemaker assumes", function()
        for light, policies in pairs({ [true] = rules.on_hot_path, [false] = rules.off_hot_path }) do
            for _, one in ipairs(policies) do
                local text = cjson.encode(one)
                equal(record.make("app.test", { A }, "17", text).light, light, text)
            end
        end
    end)

    it("shows no value of a policy that may be a secret, nor one that it does not know", function()
        local function shown(text)
            return cjson.decode(policy.without_secrets(text))
        end
        equal(shown([[{"access":{"allow":["10.0.0.0/8"],"basic":{"realm":"R","users":{"ann":"secret"}}},
            "headers":{"request":{"set":{"X-Key":"secret"},"remove":["X-Old"]},"response":{"set":{"X-A":"b"}}},
            "maintenance":{"status":503,"except_header":{"name":"X-Pass","value":"secret"}},"hold_ms":5}]]),
            { access = { allow = { "10.0.0.0/8" }, basic = { realm = "R", users = { ann = "(hidden)" } } },
                headers = { request = { set = { ["X-Key"] = "(hidden)" }, remove = { "X-Old" } },
                    response = { set = { ["X-A"] = "b" } } },
                maintenance = { status = 503, except_header = { name = "X-Pass", value = "(hidden)" } }, hold_ms = 5 })
        equal(shown('{"paths":[{"path":"/a","access":{"basic":{"users":{"bob":"secret"}}}}]}').paths[1],
            { path = "/a", access = { basic = { users = { bob = "(hidden)" } } } })
        for _, text in ipairs({ '"secret"', "secret", '{"new":"secret"}', '{"new":{"part":"secret"}}', '["secret"]',
            '{"access":"secret"}', '{"access":{"new":"secret"}}', '{"access":{"basic":"secret"}}',
            '{"access":{"basic":{"users":"secret"}}}', '{"access":{"basic":{"users":["secret"]}}}',
            '{"headers":"secret"}', '{"headers":["secret"]}', '{"headers":{"request":{"set":"secret"}}}',
            '{"headers":{"request":{"set":{"X-Key":["secret"]}}}}', '{"headers":{"request":{"add":"secret"}}}',
            '{"maintenance":{"except_header":"secret"}}', '{"maintenance":{"except":"secret"}}',
            '{"paths":"secret"}', '{"paths":["secret"]}', '{"paths":[{"access":["secret"]}]}',
            '{"paths":{"x":{"access":"secret"}}}', '{"paths":[{"new":"secret"}]}' }) do
            equal({ text, (policy.without_secrets(text):find("secret", 1, true)) }, { text, nil })
        end
    end)
end
