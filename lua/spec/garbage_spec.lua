local garbage = require("signalbox.garbage")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

return function(it)
    it("lets a small memory grow by a fixed size, and a large one by a fifth", function()
        equal(garbage.pause(1024), 500)
        equal(garbage.pause(4096), 200)
        equal(garbage.pause(20480), 120)
        equal(garbage.pause(1024 * 1024), 120)
    end)

    it("sets the pause at the end of each collection", function()
        collectgarbage("setpause", 1000)
        garbage.start()
        for _ = 1, 2 do
            collectgarbage()
            local live = collectgarbage("count")
            local pause = collectgarbage("setpause", 1000)
            truthy(math.abs(pause - garbage.pause(live)) < 20, "pause " .. pause .. " with " .. live .. " KiB")
        end
    end)
end
