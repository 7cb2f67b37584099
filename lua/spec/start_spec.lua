-- The start of the master and of a worker. They run in nginx's own phases in the edge; here the spec calls them.

local ack = require("signalbox.ack")
local follow = require("signalbox.follow")
local in_flight = require("signalbox.in_flight")
local record = require("signalbox.record")
local redis = require("redis")
local runner = require("runner")
local secret = require("signalbox.secret")
local shared = require("signalbox.shared")
local snapshot = require("signalbox.snapshot")
local start = require("signalbox.start")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

local prefix = ngx.config.prefix()
local folder = debug.getinfo(1, "S").source:match("^@(.*)/")

local function write(name, text)
    local file = assert(io.open(prefix .. name, "wb"))
    file:write(text)
    file:close()
    os.execute("chmod 0600 " .. prefix .. name)
    return prefix .. name
end

local function settings(snapshot_path, key_file)
    return { snapshot_path = snapshot_path, key_file = key_file or "", https_port = "8443", replica = redis.address,
        response_headers = "32k", retry_timeout = "1m 500ms" }
end

local function forget()
    ngx.shared.signalbox_routes:flush_all()
    ngx.shared.signalbox_state:flush_all()
end

return function(it)
    it("starts without a snapshot", function()
        start.master(settings(prefix .. "missing"))
        truthy(runner.logged("no snapshot of the route table at "), "a notice")
        truthy(shared.generation() > 1e12, "a generation that no earlier run has reached")
        equal(require("signalbox.guards").https_port, "8443")
        equal(require("signalbox.attempts").max_header_bytes, 32768)
        equal(require("signalbox.tries").retry_timeout_ms, 60500)
    end)

    it("reads the last good table, but not on a reload", function()
        forget()
        shared.put("app.test", record.make("app.test", { "127.0.0.1:1" }, "17", nil))
        shared.accept_table("aa", 7)
        local parts = {}
        snapshot.write(1, function(part) parts[#parts + 1] = part end, function() end)
        local path = write("snapshot", table.concat(parts))
        forget()
        start.master(settings(path))
        truthy(shared.has("app.test"), "the host of the snapshot")
        equal({ shared.accepted_table() }, { "aa", 7 })
        shared.put("app.test", false)
        start.master(settings(path))
        equal(shared.has("app.test"), false)
    end)

    it("starts with a damaged snapshot, and ignores it", function()
        forget()
        start.master(settings(write("damaged", "signalbox-routes 1 1\nroute\tapp.test\t")))
        truthy(runner.logged("is ignored: no end line, it is incomplete"), "a warning")
        equal(shared.size(), 0)
    end)

    it("does not start with a key file that cannot be used", function()
        local digits, keys = "must have 64 hexadecimal digits per line", "must have 1 to 8 keys"
        for text, reason in pairs({ ["short"] = digits, [("a"):rep(63) .. "g"] = digits, [""] = keys,
            [(("ab"):rep(32) .. "\n"):rep(9)] = keys }) do
            local ok, err = pcall(start.master, settings(prefix .. "missing", write("key", text)))
            equal(ok, false, text)
            contains(err, "the key file cannot be used: ")
            contains(err, reason)
        end
        local ok, err = pcall(start.master, settings(prefix .. "missing", prefix .. "no-such-key"))
        equal(ok, false)
        contains(err, "No such file")
    end)

    it("does not start with a key file that others can read or change", function()
        local path = write("key", ("6b"):rep(32))
        for mode, good in pairs({ ["0600"] = true, ["0640"] = true, ["0400"] = true, ["0644"] = false, ["0660"] = false,
            ["0601"] = false }) do
            os.execute("chmod " .. mode .. " " .. path)
            local ok, err = pcall(start.master, settings(prefix .. "missing", path))
            equal(ok, good, mode)
            if not good then
                contains(err, "has mode " .. mode:sub(2))
            end
        end
    end)

    it("takes the first key of the file, and decrypts with all", function()
        start.master(settings(prefix .. "missing", write("key", ("6b"):rep(32) .. "\n" .. ("7A"):rep(32) .. "\n")))
        equal(secret.all(), { ("k"):rep(32), ("z"):rep(32) })
        equal(secret.from_file, true)
        local of_first = secret.of("sticky")
        secret.set(("k"):rep(32))
        equal(secret.of("sticky"), of_first)
    end)

    it("makes and recognizes the same proofs as the daemons, for a few seconds", function()
        local file = assert(io.open(folder .. "/../../tests/proofs.tsv"))
        local real, at, lines = secret.time, nil, 0
        secret.time = function() return at end
        for line in file:lines() do
            local digits, when, kind, about, proof = line:match("^(%x+)\t(%d+)\t(%l+)\t([^\t]+)\t([^\t]+)$")
            if digits then
                lines = lines + 1
                local statement = kind .. " " .. about
                at = tonumber(when)
                secret.load(write("key", ("cd"):rep(32) .. "\n" .. digits .. "\n"))
                equal(secret.is_proven(statement, proof), true, "by the second key: " .. line)
                secret.load(write("key", digits .. "\n"))
                equal(secret.prove(statement), proof, line)
                for offset, valid in pairs({ [-6] = false, [-5] = true, [0] = true, [5] = true, [6] = false }) do
                    at = tonumber(when) + offset
                    equal(secret.is_proven(statement, proof), valid, offset)
                end
                at = tonumber(when)
                for _, other in ipairs({ kind .. " x", "x " .. about, statement .. " ", "" }) do
                    equal(secret.is_proven(other, proof), false, other)
                end
                secret.load("")
                equal({ secret.prove(statement), secret.is_proven(statement, proof) }, { "", false },
                    "no other process knows a random key")
            end
        end
        file:close()
        truthy(lines >= 3, lines)
        secret.time = real
    end)

    it("starts a worker that follows the table and publishes its counts", function()
        redis.start()
        redis.call("SET", "serial", "5")
        start.worker()
        runner.eventually("the table to be acknowledged", function()
            local one = ack.workers()[1]
            return one.serial == 5 and one.pid == ngx.worker.pid(), one
        end)
        equal(select(3, follow.state()), true)
        in_flight.begin("127.0.0.1:1")
        runner.eventually("the count to be published", function() return in_flight.sum() == 1, in_flight.sum() end)
    end)
end
