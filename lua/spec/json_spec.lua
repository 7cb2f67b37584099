local json = require("signalbox.json")
local runner = require("runner")
local equal = runner.equal

return function(it)
    it("reads everything that a policy may contain", function()
        equal(json.decode('{"v":1,"log_keys":{"127.0.0.1:1":"17"},"draining":["a","b"],"x":[],"y":{},"t":true}'),
            { v = 1, log_keys = { ["127.0.0.1:1"] = "17" }, draining = { "a", "b" }, x = {}, y = {}, t = true })
        equal(json.decode("[false]"), { false })
        equal(json.decode(' [ 1 , -2.5 , 1e3 , 0 ] '), { 1, -2.5, 1000, 0 })
        equal(json.decode('"a\\u00e9\\ud83d\\ude00\\n\\/"'), "a\195\169\240\159\152\128\n/")
        equal(json.decode("null"), json.null)
    end)

    it("rejects text that is not JSON", function()
        for _, text in ipairs({ "", "{", "[1", "[1,]", '{"a"}', '{"a":}', '{"a":1,}', "{a:1}", "'a'", '"a', '"\\x"',
            '"\\u12"', '"\\ud800"', "01", ".5", "-", "+1", "nul", "[1] x", "NaN", "0x10",
            ("["):rep(100) .. ("]"):rep(100) }) do
            equal((json.decode(text)), nil, text)
        end
    end)

    it("writes strings that stay inside their quotes", function()
        equal(json.string('a"b\\c\n\255'), '"a\\"b\\\\c\\u000a\\u00ff"')
    end)

    it("reads what it has written", function()
        math.randomseed(runner.seed)
        for _ = 1, 500 do
            local bytes = {}
            for i = 1, math.random(0, 30) do
                bytes[i] = string.char(math.random(0, 127))
            end
            local text = table.concat(bytes)
            equal(json.decode(json.string(text)), text)
        end
    end)
end
