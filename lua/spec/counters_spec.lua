local counters = require("signalbox.counters")
local equal = require("runner").equal

return function(it)
    it("counts each name separately, in memory that all workers share", function()
        equal(counters.get("retries"), 0)
        counters.add("retries")
        counters.add("retries")
        counters.add("held")
        equal({ counters.get("retries"), counters.get("held"), counters.get("limited") }, { 2, 1, 0 })
        -- Another worker has loaded the module for itself.
        package.loaded["signalbox.counters"] = nil
        equal(require("signalbox.counters").get("retries"), 2)
    end)
end
