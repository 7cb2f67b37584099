local crc32 = require("signalbox.crc32")
local runner = require("runner")
local equal = runner.equal

return function(it)
    it("computes the published check values", function()
        equal(crc32.hex(crc32.update(crc32.START, "123456789")), "cbf43926")
        equal(crc32.hex(crc32.update(crc32.START, "")), "00000000")
        equal(crc32.hex(crc32.update(crc32.START, "\0")), "d202ef8d")
    end)

    it("gives the same sum for a text in any pieces", function()
        math.randomseed(runner.seed)
        for _ = 1, 200 do
            local pieces, sum = {}, crc32.START
            for i = 1, math.random(0, 20) do
                local bytes = {}
                for j = 1, math.random(0, 50) do
                    bytes[j] = string.char(math.random(0, 255))
                end
                pieces[i] = table.concat(bytes)
                sum = crc32.update(sum, pieces[i])
            end
            equal(sum, ngx.crc32_long(table.concat(pieces)), "seed " .. runner.seed)
        end
    end)
end
