local backlog = require("signalbox.backlog")
local equal = require("runner").equal

return function(it)
    it("returns each name once", function()
        local names = backlog.new()
        for _, name in ipairs({ "a.test", "b.test", "a.test", "c.test" }) do
            names:add(name)
        end
        equal(names.count, 3)
        equal({ names:take(), names:take(), names:take(), names:take() }, { "c.test", "b.test", "a.test" })
        names:add("a.test")
        equal({ names:take(), names.count }, { "a.test", 0 }, "a name that was taken may be added again")
    end)

    it("can be cleared", function()
        local names = backlog.new()
        names:add("a.test")
        names:clear()
        equal({ names:take(), names.count }, { nil, 0 })
        names:add("a.test")
        equal(names:take(), "a.test")
    end)
end
