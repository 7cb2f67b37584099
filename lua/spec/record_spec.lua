local record = require("signalbox.record")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

return function(it)
    it("is flat when nothing but the set and a log key is there", function()
        local made = record.make("x", { "127.0.0.1:2", "127.0.0.1:1" }, "17", nil)
        truthy(record.is_plain(made), "plain")
        equal({ made[2], made[3], made[4], made[5] }, { "17", "127.0.0.1:1", "127.0.0.1:2" })
    end)

    it("leaves out what is no address", function()
        local made = record.make("x", { "nonsense", "127.0.0.1:1", "host:80" }, nil, nil)
        equal({ made[2], made[3], #made }, { "null", "127.0.0.1:1", 3 })
    end)

    it("tells a name without instances from no name", function()
        equal(record.make("x", {}, nil, nil), false)
        equal(record.make("x", {}, "17", nil).usable, {})
        equal(record.make("x", {}, nil, "{}").usable, {})
        equal(record.make("x", { "nonsense" }, nil, nil).usable, {})
    end)

    it("reads a policy, and ignores one that is broken", function()
        local made = record.make("x", { "127.0.0.1:1", "127.0.0.1:2" }, "17",
            '{"v":1,"draining":["127.0.0.1:1",5],"log_keys":{"127.0.0.1:2":"18","y":[]},"later":{"a":1}}')
        equal(made.usable, { "127.0.0.1:2" })
        equal(made.rules.log_keys, { ["127.0.0.1:2"] = "18" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", "{nope").usable, { "127.0.0.1:1" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", "[]").log_key, "17")
        equal(record.make("x", { "127.0.0.1:1" }, "17", '"text"').usable, { "127.0.0.1:1" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", '{"draining":5,"log_keys":"x"}').usable, { "127.0.0.1:1" })
    end)

    it("survives being written down", function()
        local odd = "a\tb\nc\\d\re"
        local texts = {
            { { "127.0.0.1:1", "127.0.0.1:2" }, "17", nil },
            { { "unix:/run/a.sock", "[::1]:80" }, odd, nil },
            { { "127.0.0.1:1" }, "1", '{"draining":[],\n"note":"tab\\there"}' },
        }
        for i = 1, #texts do
            local made = record.make("x", texts[i][1], texts[i][2], texts[i][3])
            local text = record.encode(made)
            truthy(not text:find("\n"), "one line")
            local back = record.decode("x", text)
            equal(record.encode(back), text)
            equal(back[2] or back.log_key, texts[i][2])
            equal(back.policy, texts[i][3])
        end
        equal(record.encode(record.make("x", {}, "17", nil)), nil)
        equal(record.decode("x", "nonsense"), nil)
        equal(record.decode("x", "\t\t"), nil)
    end)
end
