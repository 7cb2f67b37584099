local held = require("signalbox.held")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

-- Starts waiting for `name` in a thread; the table it returns gets `woken` when the wait ends.
local function waiter(name, seconds)
    local one = {}
    one.thread = ngx.thread.spawn(function()
        one.result = held.wait(name, seconds)
        one.woken = true
    end)
    return one
end

return function(it)
    it("wakes every request that waits for the name, and no other", function()
        local first, second, other = waiter("a.test", 30), waiter("a.test", 30), waiter("b.test", 30)
        equal(held.count, 3)
        held.arrived("a.test")
        runner.eventually("both to be woken", function()
            return first.woken and second.woken, { first.woken, second.woken }
        end)
        equal({ first.result, second.result, other.woken, held.count }, { true, true, nil, 1 })
        held.arrived("b.test")
        assert(ngx.thread.wait(other.thread))
        equal(held.count, 0)
    end)

    it("ends a wait without an arrival, and forgets it", function()
        equal(held.wait("c.test", 0.01), true)
        equal(held.count, 0)
        -- No request is left to wake: an arrival must not be kept for a later request.
        held.arrived("c.test")
        local later = waiter("c.test", 30)
        truthy(not later.woken, "it waits for the next arrival")
        held.arrived("c.test")
        assert(ngx.thread.wait(later.thread))
        truthy(later.woken, "woken by its own arrival")
    end)

    it("does not hold more requests than the limit", function()
        local real = held.count
        held.count = 8192
        equal(held.wait("d.test", 30), false)
        held.count = real
    end)

    it("leaves places for other names, however many requests wait for one", function()
        local noisy = {}
        for i = 1, 4096 do
            noisy[i] = waiter("noisy.test", 30)
        end
        equal({ held.count, held.wait("noisy.test", 30) }, { 4096, false }, "its share")
        for _, name in ipairs({ "e.test", "f.test" }) do
            local quiet = waiter(name, 30)
            equal(quiet.woken, nil, name)
            held.arrived(name)
            assert(ngx.thread.wait(quiet.thread))
            equal(quiet.result, true, name)
        end
        held.arrived("noisy.test")
        for i = 1, #noisy do
            assert(ngx.thread.wait(noisy[i].thread))
        end
        equal(held.count, 0)
    end)
end
