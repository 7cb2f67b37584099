local record = require("signalbox.record")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

return function(it)
    it("is plain when there are only instances and a log key", function()
        local made = record.make("x", { "127.0.0.1:2", "127.0.0.1:1" }, "17", nil)
        truthy(record.is_plain(made), "plain")
        equal({ made[2], made[3], made[4], made[5] }, { "17", "127.0.0.1:1", "127.0.0.1:2" })
    end)

    it("ignores invalid addresses", function()
        local made = record.make("x", { "nonsense", "127.0.0.1:1", "host:80" }, nil, nil)
        equal({ made[2], made[3], #made }, { "null", "127.0.0.1:1", 3 })
    end)

    it("distinguishes a name without instances from no name", function()
        equal(record.make("x", {}, nil, nil), false)
        equal(record.make("x", {}, "17", nil).usable, {})
        equal(record.make("x", {}, nil, "{}").usable, {})
        equal(record.make("x", { "nonsense" }, nil, nil).usable, {})
    end)

    it("reads a policy, and ignores an invalid one", function()
        local made = record.make("x", { "127.0.0.1:1", "127.0.0.1:2" }, "17",
            '{"v":1,"draining":["127.0.0.1:1",5],"log_keys":{"127.0.0.1:2":"18","y":[]},"later":{"a":1}}')
        equal(made.usable, { "127.0.0.1:2" })
        equal(made.rules.log_keys, { ["127.0.0.1:2"] = "18" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", "{nope").usable, { "127.0.0.1:1" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", "[]").log_key, "17")
        equal(record.make("x", { "127.0.0.1:1" }, "17", '"text"').usable, { "127.0.0.1:1" })
        equal(record.make("x", { "127.0.0.1:1" }, "17", '{"draining":5,"log_keys":"x"}').usable, { "127.0.0.1:1" })
    end)

    it("survives encoding and decoding", function()
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

    it("answers the same questions of a plain and of a special record", function()
        local list = { "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3" }
        local plain = record.make("x", list, "17", nil)
        local special = record.make("x", list, "17", '{"draining":["127.0.0.1:1"],"weights":{"127.0.0.1:2":0},'
            .. '"log_keys":{"127.0.0.1:3":"18"}}')
        local function addresses(read, one)
            local found, from, to = read(one)
            return table.concat(found, " ", from, to)
        end
        equal({ record.rules(plain), record.is_plain(plain), record.is_plain(special) }, { nil, true, false })
        equal({ addresses(record.addresses, plain), addresses(record.usable, plain),
            addresses(record.candidates, plain), record.count(plain) },
            { table.concat(list, " "), table.concat(list, " "), table.concat(list, " "), 3 })
        equal({ addresses(record.addresses, special), addresses(record.usable, special),
            addresses(record.candidates, special), record.count(special) },
            { table.concat(list, " "), "127.0.0.1:2 127.0.0.1:3", "127.0.0.1:3", 1 })
        equal({ record.log_key(plain), record.log_key(plain, list[3]) }, { "17", "17" })
        equal({ record.log_key(special), record.log_key(special, list[1]), record.log_key(special, list[3]) },
            { "17", "17", "18" })
        equal(record.rules(special).weights, { ["127.0.0.1:2"] = 0 })
    end)

    it("counts the requests that were routed with it", function()
        local plain = record.make("x", { "127.0.0.1:1", "127.0.0.1:2" }, "17", nil)
        local before = record.served(plain)
        for _ = 1, 5 do
            record.plain_next(plain)
        end
        equal(record.served(plain) - before, 5)
        equal(record.served(record.make("x", { "127.0.0.1:1" }, "17", "{}")), 0)
        local single = record.make("x", { "127.0.0.1:1" }, nil, nil)
        equal({ record.plain_has_several(plain), record.plain_has_several(single), record.plain_log_key(plain),
            record.plain_log_key(single) }, { true, false, "17", "null" })
    end)

    it("shows of the text of another version that something is hidden", function()
        local text = record.encode(record.make("x", { "127.0.0.1:1" }, "17", '{"hold_ms":5}'))
        equal(record.without_secrets(text), text)
        text = record.encode(record.make("x", { "127.0.0.1:1" }, "17", nil))
        equal(record.without_secrets(text), text)
        for _, other in ipairs({ text .. "\tsecret", "secret", "17\tsecret", "" }) do
            equal(record.without_secrets(other), "(hidden)")
        end
    end)
end
