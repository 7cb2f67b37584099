-- The check at the start, against the TLS listener of this nginx, which waits as the edge does, and against a listener
-- with which a handshake fails, as with an nginx that cannot wait.

local handshake = require("signalbox.handshake")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local prefix = ngx.config.prefix()

return function(it)
    it("passes where the certificate callback can wait", function()
        local wait, waited = handshake.wait, 0
        handshake.wait = function()
            waited = waited + 1
            return wait()
        end
        local ok, err = handshake.try("unix:" .. prefix .. "tls.sock ssl http2")
        handshake.wait = wait
        equal({ ok, err }, { true })
        equal(waited, 1)
    end)

    it("names what is missing if the handshake fails", function()
        runner.expect_error("SSL_do_handshake() failed")
        runner.expect_error("this nginx cannot wait in a certificate callback")
        -- It speaks no TLS.
        handshake.check(false, "unix:" .. prefix .. "one.sock")
    end)

    it("warns if the listener is not there, and does nothing when the worker ends", function()
        runner.expect_error("missing.sock failed")
        handshake.check(false, "unix:" .. prefix .. "missing.sock")
        truthy(runner.logged("cannot check the handshake at "), "a warning")
        handshake.check(true, "unix:" .. prefix .. "one.sock")
    end)

    it("finds the listener of each form of address", function()
        equal({ handshake.target("0.0.0.0:8443 proxy_protocol") }, { "127.0.0.1", 8443 })
        equal({ handshake.target("[::]:443") }, { "[::1]", 443 })
        equal({ handshake.target("*:443") }, { "127.0.0.1", 443 })
        equal({ handshake.target("443") }, { "127.0.0.1", 443 })
        equal({ handshake.target("10.0.0.7:443") }, { "10.0.0.7", 443 })
        equal({ handshake.target("unix:/run/tls.sock") }, { "unix:/run/tls.sock" })
    end)
end
