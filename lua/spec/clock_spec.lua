-- The clock for ages and pauses.

local clock = require("signalbox.clock")
local runner = require("runner")
local truthy = runner.truthy

return function(it)
    it("moves forward as fast as the time of day", function()
        ngx.update_time()
        local day, age = ngx.now(), clock.now()
        ngx.sleep(0.05)
        ngx.update_time()
        local passed = clock.now() - age
        truthy(passed >= 0.049, passed)
        truthy(math.abs(passed - (ngx.now() - day)) < 0.02, passed)
    end)

    it("never moves back", function()
        local last = clock.now()
        for _ = 1, 10000 do
            local now = clock.now()
            truthy(now >= last)
            last = now
        end
    end)
end
