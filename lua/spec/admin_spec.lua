-- The edge's endpoints on the admin listener, by real requests.

local ack = require("signalbox.ack")
local client = require("client")
local in_flight = require("signalbox.in_flight")
local json = require("signalbox.json")
local lookups = require("signalbox.lookups")
local record = require("signalbox.record")
local routes = require("signalbox.routes")
local runner = require("runner")
local secret = require("signalbox.secret")
local shared = require("signalbox.shared")
local snapshot = require("signalbox.snapshot")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

require("signalbox.admin")

local function call(path, method, headers)
    return client.request({ socket = "admin", path = path, method = method, headers = headers })
end

local function code(path, method, headers)
    local response = call(path, method, headers)
    return { response.status, response.headers["x-signalbox-error"] }
end

return function(it)
    it("answers /edge/ack with the workers' serials", function()
        ack.join()
        ack.publish(7, 7, "aa", true)
        local answer = json.decode(call("/edge/ack?serial=7").body)
        equal({ answer.reached, answer.serial, answer.epoch, #answer.workers }, { true, 7, "aa", 1 })
        equal(json.decode(call("/edge/ack?serial=8&wait=0.01").body).reached, false)
        for _, query in ipairs({ "serial=-1", "serial=1e3", "serial=9999999999999999", "serial", "wait=x",
            "wait=-1" }) do
            equal(code("/edge/ack?" .. query), { 400, "invalid_parameter" }, query)
        end
    end)

    it("answers /edge/status with the state of the worker", function()
        routes.put("app.test", record.make("app.test", { "127.0.0.1:1" }, "17", nil))
        routes.put("none.test", false)
        shared.put("app.test", routes.known("app.test"))
        in_flight.begin("127.0.0.1:1")
        in_flight.publish()
        ack.publish(false, 9, "aa", false, "table_regressed")
        local status = json.decode(call("/edge/status").body)
        in_flight.finish("127.0.0.1:1")
        equal({ status.connected, status.stale, status.alarm, status.serial, status.epoch },
            { false, true, "table_regressed", 7, "aa" })
        equal(status.ejected, {})
        equal({ status.hosts, status.negative, status.known, status.suspects, status.worker, status.in_flight },
            { 1, 1, 1, 0, 0, { ["127.0.0.1:1"] = 1 } })
        truthy(status.memory_kb > 100, "memory")
        ack.publish(false, 9, "aa", true)
        status = json.decode(call("/edge/status").body)
        equal({ status.stale, status.alarm }, { false, json.null })
    end)

    it("serves the snapshot of the table, and 304 while it is the same", function()
        secret.set(("k"):rep(32))
        local proof = secret.prove("table " .. secret.run())
        local response = call("/edge/snapshot", nil, { ["X-Signalbox-Proof"] = proof })
        equal(select(2, snapshot.verify(response.body)), 1)
        truthy(secret.is_proven("answer " .. proof, response.headers["x-signalbox-proof"]), "nginx proves its answer")
        equal(response.headers["x-signalbox-generation"], ("%.0f"):format(shared.generation()))
        local tag = { ["If-None-Match"] = response.headers.etag, ["X-Signalbox-Proof"] = proof }
        equal({ call("/edge/snapshot", nil, tag).status, call("/edge/snapshot", "HEAD").body }, { 304, "" })
        shared.put("more.test", record.make("more.test", { "127.0.0.1:1" }, "17", nil))
        response = call("/edge/snapshot", nil, tag)
        equal({ response.status, select(2, snapshot.verify(response.body)) }, { 200, 2 })
    end)

    it("shows the table without secrets to a client that is not the sidecar", function()
        secret.set(("k"):rep(32))
        local policy = '{"access":{"basic":{"users":{"ann":"$6$hash"}}},'
            .. '"headers":{"request":{"set":{"X-Key":"s3cret"}}},'
            .. '"maintenance":{"status":503,"except_header":{"name":"X-Pass","value":"letmein"}},'
            .. '"paths":[{"path":"/a","access":{"basic":{"users":{"bob":"$6$path"}}}}]}'
        shared.put("secrets.test", record.make("secrets.test", { "127.0.0.1:1" }, "17", policy))
        shared.put("broken.test", record.make("broken.test", { "127.0.0.1:1" }, "17", '{"k":"s3cret"'))
        truthy(runner.logged("the policy of broken.test is not a JSON object"), "a warning")
        shared.put_certificate("secrets.test", "chain and s3cret key")
        local real = secret.prove("table " .. secret.run())
        local whole = call("/edge/snapshot", nil, { ["X-Signalbox-Proof"] = real }).body
        for _, text in ipairs({ "$6$hash", "$6$path", "s3cret", "letmein", "chain" }) do
            contains(whole, text)
        end
        equal(json.decode(call("/edge/status").body).run, secret.run())
        -- What the sidecar has proven to a process that had the port of this nginx before it began.
        local earlier = secret.prove("table " .. ("0"):rep(32))
        for _, proof in ipairs({ "", "x", earlier, secret.prove("client 127.0.0.1"), secret.prove("answer " .. real),
            real .. "0", real:upper(), real:sub(1, -2), real:match("%x+$") }) do
            local shown = call("/edge/snapshot", nil, { ["X-Signalbox-Proof"] = proof })
            local body = shown.body
            equal(shown.headers["x-signalbox-proof"], nil)
            for _, text in ipairs({ "$6$hash", "$6$path", "s3cret", "letmein", "chain" }) do
                equal(body:find(text, 1, true), nil, text)
            end
            for _, text in ipairs({ "route\tsecrets.test\t17\t", "127.0.0.1:1", "X-Key", "ann", "X-Pass",
                "(hidden)" }) do
                contains(body, text)
            end
            equal({ snapshot.verify(body) }, { nil, "not a snapshot" }, "it is never loaded")
            local tag = { ["If-None-Match"] = shown.headers.etag, ["X-Signalbox-Proof"] = real }
            equal(call("/edge/snapshot", nil, tag).status, 200, "the whole table is another text")
        end
        secret.load("")
        equal({ secret.prove("table " .. secret.run()), call("/edge/snapshot").body:find("s3cret", 1, true) }, { "" },
            "without a key file")
    end)

    it("serves others while it writes the table without secrets, which it does once at a time", function()
        for i = 1, 2000 do
            local name = "many-" .. i .. ".test"
            local policy = '{"headers":{"request":{"set":{"X-Key":"k"}}}}'
            shared.put(name, record.make(name, { "127.0.0.1:1" }, "17", policy))
        end
        local first, second, turns = nil, nil, 0
        local reader = ngx.thread.spawn(function() first = call("/edge/snapshot") end)
        repeat
            ngx.sleep(0.001)
            turns = turns + 1
            second = second or call("/edge/snapshot")
        until first
        assert(ngx.thread.wait(reader))
        equal({ first.status, select(2, first.body:gsub("route\tmany%-", "")) }, { 200, 2000 })
        equal({ second.status, second.headers["x-signalbox-error"], second.headers["retry-after"],
            second.headers.etag }, { 429, "too_many_requests", "1" })
        truthy(turns > 20, "turns of the worker's event loop in the meantime: " .. turns)
        equal(call("/edge/snapshot").status, 200, "the next one")
        for i = 1, 2000 do
            shared.put("many-" .. i .. ".test", false)
        end
    end)

    it("shows the instances of a host", function()
        lookups.trusted = true
        routes.put("*.wild.test", record.make("*.wild.test", { "127.0.0.1:2" }, "18", nil))
        routes.put("a.wild.test", false)
        local shown = json.decode(call("/edge/outliers?host=A.wild.test").body)
        equal({ shown.host, shown.matched, shown.instances[1].address, shown.instances[1].state },
            { "a.wild.test", "*.wild.test", "127.0.0.1:2", "in" })
        routes.put("none.test", false)
        routes.put("*.test", false)
        routes.put("*", false)
        equal(code("/edge/outliers?host=none.test"), { 404, "no_route" })
        equal(code("/edge/outliers"), { 400, "invalid_parameter" })
        equal(code("/edge/outliers?host=%0a"), { 400, "invalid_parameter" })
        equal(code("/edge/outliers?host=x&host=y"), { 400, "invalid_parameter" })
        lookups.trusted = false
        equal(code("/edge/outliers?host=unknown.zz"), { 503, "table_unreachable" })
    end)

    it("accepts the table in Redis only with the header that a web page cannot send", function()
        shared.accept_table("aa", 7)
        equal(code("/edge/accept", "POST"), { 400, "invalid_parameter" })
        equal({ shared.operator_accepts(), shared.accepted_table() }, { 0, "aa", 7 })
        local response = call("/edge/accept", "POST", { ["X-Signalbox-Accept"] = "table" })
        equal({ response.status, response.body }, { 200, '{"accepted":true}\n' })
        equal({ shared.operator_accepts(), shared.accepted_table() }, { 1 })
    end)

    it("rejects other methods and unknown paths", function()
        local response = call("/edge/accept")
        equal({ response.status, response.headers.allow }, { 405, "POST" })
        response = call("/edge/status", "POST")
        equal({ response.status, response.headers.allow }, { 405, "GET, HEAD" })
        response = call("/edge/nothing")
        equal({ response.status, json.decode(response.body).code }, { 404, "not_found" })
        contains(response.body, "/edge/ack")
    end)
end
