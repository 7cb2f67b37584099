-- Certificates of the table in real TLS handshakes. Clients trust only the certificate of `table.test` (and of its
-- subdomains), which lua/spec/run makes; the listener's own is for `listener.test`.

local certificates = require("signalbox.certificates")
local client = require("client")
local ffi = require("ffi")
local follow = require("signalbox.follow")
local json = require("signalbox.json")
local lookups = require("signalbox.lookups")
local redis = require("redis")
local runner = require("runner")
local secret = require("signalbox.secret")
local shared = require("signalbox.shared")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

ffi.cdef([[
int EVP_EncryptInit_ex(void *ctx, const void *cipher, void *engine, const unsigned char *key, const unsigned char *iv);
int EVP_EncryptUpdate(void *ctx, unsigned char *out, int *out_length, const unsigned char *in, int in_length);
int EVP_EncryptFinal_ex(void *ctx, unsigned char *out, int *out_length);
]])
local C = ffi.C

local KEY = ("k"):rep(32)
secret.set(KEY)

-- The pacemaker's side: the inverse of crypto.open.
local function seal(key, text, with)
    local nonce = ("n"):rep(12)
    local ctx, length = C.EVP_CIPHER_CTX_new(), ffi.new("int[1]")
    local out, tag = ffi.new("unsigned char[?]", #text + 16), ffi.new("unsigned char[16]")
    C.EVP_EncryptInit_ex(ctx, C.EVP_aes_256_gcm(), nil, key, nonce)
    C.EVP_EncryptUpdate(ctx, nil, length, with, #with)
    C.EVP_EncryptUpdate(ctx, out, length, text, #text)
    local written = length[0]
    C.EVP_EncryptFinal_ex(ctx, out + written, length)
    C.EVP_CIPHER_CTX_ctrl(ctx, 0x10, 16, tag)
    C.EVP_CIPHER_CTX_free(ctx)
    return nonce .. ffi.string(out, written) .. ffi.string(tag, 16)
end

local function file(name)
    local handle = assert(io.open(ngx.config.prefix() .. "../" .. name))
    local text = handle:read("*a")
    handle:close()
    return text
end

local CHAIN, PEM = file("table.crt"), file("table.key")

local function entry(name, key, ends)
    return ('{"v":1,"chain":%s,"key":%s%s}'):format(json.string(CHAIN),
        json.string(ngx.encode_base64(seal(key or KEY, PEM, name))), ends and ',"ends":' .. ends or "")
end

local function put(name, text)
    if text then
        redis.call("SET", "cert:" .. name, text)
    else
        redis.call("DEL", "cert:" .. name)
    end
    local serial = redis.call("INCR", "serial")
    runner.eventually("the change to be acknowledged", function()
        local ack = require("signalbox.ack").workers()[1]
        return ack.serial == serial, ack
    end)
end

-- Whether a client that trusts only the table's certificate accepts the handshake for `name`.
local function accepted(name)
    local ok, response = pcall(client.request, { socket = "tls", tls = name, host = "none.test" })
    return ok and response.status == 404, response
end

return function(it)
    it("presents the listener's own certificate for a name without one", function()
        require("signalbox.ack").join()
        redis.start()
        redis.call("SET", "serial", "1")
        follow.start(redis.address)
        runner.eventually("the table to be trusted", function() return lookups.trusted end)
        local ok, reason = accepted("table.test")
        truthy(not ok, "not the table's")
        contains(tostring(reason), "certificate")
        equal(client.request({ socket = "tls", tls = "table.test", verify = false, host = "none.test" }).status, 404)
        equal(certificates.requested(), { "table.test -" })
    end)

    it("reports the names of each client in turn", function()
        local dict = ngx.shared.signalbox_requested
        for n = 1, 200 do
            dict:set("invented-" .. n .. ".test", "noisy", 30)
        end
        dict:set("#noisy", 200, 30)
        dict:set("wanted.test", "quiet", 30)
        for _ = 1, 20 do
            local names = certificates.requested()
            equal(#names, 100)
            local wanted = "wanted.test quiet"
            truthy(names[1] == wanted or names[2] == wanted or names[3] == wanted)
        end
        dict:flush_all()
    end)

    it("names clients by the /64 of their address, and by a key that only the router knows", function()
        local function v6(last)
            return "\x20\x01\x0d\xb8" .. string.rep("\0", 11) .. last
        end
        local name = certificates.client_name("\192\0\2\1")
        equal(#name, 12)
        equal(certificates.client_name(v6("\1")), certificates.client_name(v6("\2")))
        truthy(certificates.client_name("\192\0\2\2") ~= name)
        secret.set(("x"):rep(32))
        truthy(certificates.client_name("\192\0\2\1") ~= name, "another key, another name")
        secret.set(KEY)
        equal(certificates.client_name("\192\0\2\1"), name)
    end)

    it("presents a certificate from the next handshake after the change", function()
        put("table.test", entry("table.test"))
        equal((accepted("table.test")), true)
        truthy(not accepted("a.table.test"), "not for a name below")
        put("*.table.test", entry("*.table.test"))
        equal({ (accepted("a.table.test")), (accepted("A.TABLE.test")) }, { true, true })
        put("table.test", nil)
        equal((accepted("table.test")), false)
        put("*", entry("*"))
        equal((accepted("table.test")), true)
        put("*", nil)
        put("table.test", entry("table.test"))
    end)

    it("does not present a certificate that has expired, but a matching wildcard that has not", function()
        put("a.table.test", entry("a.table.test", KEY, ngx.time() - 1))
        equal((accepted("a.table.test")), true, "the wildcard")
        put("*.table.test", entry("*.table.test", KEY, ngx.time()))
        equal((accepted("a.table.test")), false, "both have expired")
        put("a.table.test", entry("a.table.test", KEY, ngx.time() + 3600))
        equal((accepted("a.table.test")), true)
        put("a.table.test", nil)
        equal((accepted("a.table.test")), false, "deleted")
        put("*.table.test", entry("*.table.test"))
    end)

    it("keeps the private key encrypted in shared memory", function()
        equal((accepted("table.test")), true)
        local text = shared.certificate("table.test")
        contains(text, "BEGIN CERTIFICATE")
        truthy(not text:find("PRIVATE KEY", 1, true), "not in the clear")
        equal(shared.certificate("nothing.test"), nil)
    end)

    it("rejects a private key of another name or of another key, and data that is not a certificate", function()
        for text, reason in pairs({
            [entry("other.test")] = "its private key cannot be decrypted with this router's key file",
            [entry("x.test", ("z"):rep(32))] = "its private key cannot be decrypted with this router's key file",
            ["[]"] = "it is not JSON with `chain` and `key`",
            ["nonsense"] = "it is not JSON with `chain` and `key`",
            ['{"chain":"x","key":"' .. ngx.encode_base64(seal(KEY, PEM, "x.test")) .. '"}'] = "its chain: ",
            [('{"chain":%s,"key":"%s"}'):format(json.string(CHAIN),
                ngx.encode_base64(seal(KEY, "no key", "x.test")))] = "its private key: ",
        }) do
            local made, err = certificates.open("x.test", text)
            equal(made, nil, reason)
            contains(err, reason)
        end
        truthy(certificates.open("x.test", entry("x.test")), "the right one")
    end)

    it("warns of a certificate that cannot be used, and presents the listener's own", function()
        put("*.table.test", entry("wrong.test"))
        equal((accepted("a.table.test")), false)
        truthy(runner.logged("the certificate of *.table.test in the route table cannot be used"), "a warning")
    end)

    it("reads a change that came while too many lookups were open", function()
        put("late.test", entry("late.test"))
        accepted("late.test")
        truthy(shared.certificate("late.test"), "in shared memory")
        local most = certificates.max_open
        certificates.max_open = 0
        put("late.test", nil)
        truthy(shared.certificate("late.test"), "not looked up yet")
        certificates.max_open = most
        -- Without a handshake: shared memory must not serve it while the replica is down.
        runner.eventually("the lookup", function() return not shared.certificate("late.test") end)
    end)

    it("presents what it knows when the replica is gone", function()
        equal((accepted("table.test")), true)
        redis.crash()
        runner.eventually("the loss to be noticed", function() return not lookups.trusted end)
        equal((accepted("table.test")), true)
        equal((accepted("never.seen.test")), false)
    end)

    it("lets a worker that has just started take certificates from shared memory", function()
        package.loaded["signalbox.certificates"] = nil
        equal((accepted("table.test")), true)
    end)
end
