local held = require("signalbox.held")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

-- Waits in a thread under `name` for `host`. The table it returns gets `place`, or `refused`, and `woken` when the wait
-- ends. The place is kept until leave().
local function waiter(name, host, address)
    local one = {}
    one.thread = ngx.thread.spawn(function()
        one.place = held.enter(name, host or name, address)
        if not one.place then
            one.refused = true
            return
        end
        one.result = held.wait(one.place, 30)
        one.woken = true
    end)
    return one
end

local function leave(one)
    assert(ngx.thread.wait(one.thread))
    if one.place then
        held.leave(one.place)
    end
end

return function(it)
    it("wakes every request that waits for the name, and no other", function()
        local first, second, other = waiter("a.test"), waiter("a.test"), waiter("b.test")
        equal(held.count, 3)
        held.arrived("a.test")
        runner.eventually("both to be woken", function()
            return first.woken and second.woken, { first.woken, second.woken }
        end)
        equal({ first.result, second.result, other.woken, held.count }, { true, true, nil, 3 })
        leave(first)
        leave(second)
        held.arrived("b.test")
        leave(other)
        equal(held.count, 0)
    end)

    it("ends a wait without a call, and forgets the request when it leaves", function()
        local place = held.enter("c.test", "c.test")
        equal(held.wait(place, 0.01), true)
        held.leave(place)
        held.leave(place)
        equal({ held.count, held.awaits("c.test") }, { 0, false })
        -- No request is left to wake: a call must not be kept for a later request.
        held.arrived("c.test")
        local later = waiter("c.test")
        truthy(not later.woken, "it waits for the next call")
        held.arrived("c.test")
        leave(later)
        truthy(later.woken, "woken by its own call")
    end)

    it("keeps a call that comes while the request does something else", function()
        local place = held.enter("c.test", "c.test")
        held.arrived("c.test")
        held.arrived("c.test")
        local before = ngx.now()
        held.wait(place, 30)
        ngx.update_time()
        truthy(ngx.now() - before < 5, "woken immediately")
        before = ngx.now()
        held.wait(place, 0.05)
        ngx.update_time()
        truthy(ngx.now() - before >= 0.04, "once")
        held.leave(place)
    end)

    it("wakes a request for each name that may serve its host, and for its instance", function()
        for _, key in ipairs({ "a.w.test", "*.w.test", "*.test", "*", "127.0.0.1:9001" }) do
            local one = waiter("*.w.test", "a.w.test", "127.0.0.1:9001")
            equal(held.awaits(key), true, key)
            held.arrived("b.w.test")
            truthy(not one.woken, "another host")
            held.arrived(key)
            leave(one)
            truthy(one.woken, key)
            equal({ held.count, held.awaits(key) }, { 0, false })
        end
    end)

    it("does not hold more requests than the limit", function()
        local real = held.count
        held.count = 10240
        equal(held.enter("d.test", "d.test"), nil)
        held.count = real
    end)

    it("leaves places for other names, however many requests wait for one", function()
        local noisy = {}
        for i = 1, 4096 do
            noisy[i] = held.enter("noisy.test", "noisy.test")
        end
        equal({ #noisy, held.enter("noisy.test", "noisy.test") }, { 4096 }, "its share")
        -- Hosts under a wildcard share its places, because anybody may invent them.
        equal(held.enter("noisy.test", "other.noisy.test"), nil)
        for _, name in ipairs({ "e.test", "f.test" }) do
            local quiet = waiter(name)
            equal({ quiet.woken, quiet.refused }, {}, name)
            held.arrived(name)
            leave(quiet)
            equal(quiet.result, true, name)
        end
        for i = 1, #noisy do
            held.leave(noisy[i])
        end
        equal(held.count, 0)
    end)

    it("leaves places for names with few requests, however many requests wait for several others", function()
        local noisy = {}
        for i = 1, 40 do
            for _ = 1, 10240 do
                noisy[#noisy + 1] = held.enter("noisy" .. i .. ".test", "noisy" .. i .. ".test")
            end
        end
        truthy(held.count > 8000, "many: " .. held.count)
        for i = 1, 16 do
            noisy[#noisy + 1] = held.enter("quiet.test", "quiet.test")
            truthy(noisy[#noisy].name == "quiet.test", "request " .. i)
        end
        for i = 1, #noisy do
            held.leave(noisy[i])
        end
        equal(held.count, 0)
    end)

    it("lets a request wait again although others have taken the places meanwhile", function()
        local one = waiter("kept.test")
        held.arrived("kept.test")
        runner.eventually("it to be woken", function() return one.woken end)
        local real = held.count
        held.count = 10240
        local again = ngx.thread.spawn(held.wait, one.place, 30)
        held.arrived("kept.test")
        equal({ ngx.thread.wait(again) }, { true, true })
        held.count = real
        leave(one)
    end)

    it("lets requests that wait in an exiting worker wait again, and no others begin to", function()
        local one = waiter("exit.test")
        local exiting = ngx.worker.exiting
        rawset(ngx.worker, "exiting", function() return true end)
        ngx.ctx.has_waited = nil
        equal(held.enter("exit.test", "exit.test"), nil)
        held.arrived("exit.test")
        runner.eventually("it to be woken", function() return one.woken end)
        equal(held.wait(one.place, 0.01), true)
        leave(one)
        -- Paused before, and now without an instance.
        ngx.ctx.has_waited = true
        held.leave(held.enter("exit.test", "exit.test"))
        rawset(ngx.worker, "exiting", exiting)
    end)
end
