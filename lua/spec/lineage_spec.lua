local equal = require("runner").equal
local lineage = require("signalbox.lineage")

local refusal = lineage.refusal
local REGRESSED, UNKNOWN = lineage.REGRESSED, lineage.UNKNOWN_EPOCH

return function(it)
    it("accepts a table written by hand", function()
        equal(refusal(nil, nil, nil, nil), nil)
        equal(refusal(nil, nil, nil, 7), nil)
        equal(refusal(nil, 7, nil, 7), nil)
        equal(refusal(nil, 7, nil, 8), nil)
    end)

    it("rejects a serial that went back, with or without an epoch", function()
        equal(refusal(nil, 7, nil, 6), REGRESSED)
        equal(refusal(nil, 7, nil, nil), REGRESSED)
        equal(refusal("aa", 7, "aa", 6), REGRESSED)
        equal(refusal("aa", 7, "bb aa", 6), REGRESSED)
    end)

    it("accepts a first epoch, and a lineage that contains its own", function()
        equal(refusal(nil, 7, "aa", 8), nil)
        equal(refusal("aa", 7, "aa", 7), nil)
        equal(refusal("aa old", 7, "cc bb aa", 9), nil)
    end)

    it("rejects a foreign lineage, and an older one", function()
        equal(refusal("aa", 7, "bb", 100), UNKNOWN)
        equal(refusal("bb aa", 7, "aa", 100), UNKNOWN)
        equal(refusal("aa", 7, "aaa xaa", 100), UNKNOWN)
    end)

    it("reports a table that lost its epoch as regressed", function()
        equal(refusal("aa", 7, nil, nil), REGRESSED)
        equal(refusal("aa", 7, nil, 8), REGRESSED)
    end)

    it("reads serials as Redis writes them", function()
        equal(lineage.serial("42"), 42)
        for _, text in ipairs({ "", "-1", "1.5", "x", "0x10", "1e3", "9999999999999999" }) do
            equal(lineage.serial(text), nil, text)
        end
        equal(lineage.serial(nil), nil)
    end)
end
