local app = require("app")
local held = require("signalbox.held")
local runner = require("runner")
local equal = runner.equal

-- Replaced before the probe stores it.
local address, probes = require("signalbox.address"), 0
local connect = address.connect
address.connect = function(...)
    probes = probes + 1
    return connect(...)
end

local probe = require("signalbox.probe")

return function(it)
    it("tries one connection in an interval, whoever asks", function()
        runner.expect_error("failed (2: No such file or directory)")
        local down = app.address("missing")
        local first, second = held.enter("a.test", "a.test", down), held.enter("b.test", "b.test", down)
        local started = probes
        for _ = 1, 10 do
            equal({ probe.succeeds(first.shared, down, 0) or nil, probe.succeeds(second.shared, down, 0) or nil }, {})
        end
        equal(probes - started, 1)
        ngx.sleep(probe.INTERVAL_SECONDS)
        probe.succeeds(second.shared, down, 0)
        equal(probes - started, 2)
        held.leave(first)
        held.leave(second)
    end)

    it("wakes all that wait for the address when it accepts connections, and tries again for later ones", function()
        local up = app.address("one")
        local first, second = held.enter("a.test", "a.test", up), held.enter("b.test", "b.test", up)
        local seen, started = probe.successes(first.shared), probes
        equal(probe.succeeds(first.shared, up, seen), true)
        local before = ngx.now()
        held.wait(second, 30)
        ngx.update_time()
        equal({ ngx.now() - before < 5, probe.succeeds(second.shared, up, seen), probes - started }, { true, true, 1 })
        held.leave(first)
        -- One that begins to wait now has been refused since.
        local third = held.enter("a.test", "a.test", up)
        equal(probe.succeeds(third.shared, up, probe.successes(third.shared)), false)
        held.leave(second)
        held.leave(third)
        equal(held.count, 0)
    end)
end
