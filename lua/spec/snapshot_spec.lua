-- The shared cache and its text on disk.

local record = require("signalbox.record")
local runner = require("runner")
local shared = require("signalbox.shared")
local snapshot = require("signalbox.snapshot")
local equal, truthy = runner.equal, runner.truthy

local function make(port)
    return record.make("x", { "127.0.0.1:" .. port }, "k" .. port, nil)
end

local function address_of(value)
    local list, from = record.addresses(value)
    return list[from]
end

local function text()
    local parts = {}
    snapshot.write(7, function(part)
        parts[#parts + 1] = part
    end, function() end)
    return table.concat(parts)
end

local function empty()
    for _, dict in pairs(ngx.shared) do
        dict:flush_all()
        dict:flush_expired()
    end
end

return function(it)
    it("stores, replaces and removes, and counts changes", function()
        shared.put("a.test", make(1))
        local generation = shared.generation()
        shared.put("a.test", make(1))
        equal(shared.generation(), generation, "an identical snapshot is not a change")
        shared.put("a.test", make(2))
        truthy(shared.generation() > generation, "a change is")
        equal(address_of(shared.get("a.test")), "127.0.0.1:2")
        shared.put("a.test", record.make("x", {}, "17", nil))
        equal(shared.has("a.test"), false)
        equal(shared.size(), 0)
    end)

    it("reuses a free slot", function()
        for round = 1, 50 do
            shared.put("r" .. round .. ".test", make(1))
            shared.put("r" .. round .. ".test", false)
        end
        truthy(shared.slots() <= 2, "slots used: " .. shared.slots())
    end)

    it("restores the whole cache", function()
        empty()
        for i = 1, 2500 do
            shared.put("h" .. i .. ".test", make(i))
        end
        shared.put("h7.test", false)
        shared.put("*.wild.test", make(9))
        shared.put_alias("some.wild.test", "*.wild.test")
        shared.accept_table("bb aa", 42)
        local whole = text()
        empty()
        equal({ snapshot.read(whole) }, { true, 2501 })
        equal(record.log_key(shared.get("h2500.test")), "k2500")
        equal(shared.get("h7.test"), nil)
        equal(address_of((shared.find("some.wild.test"))), "127.0.0.1:9")
        equal({ shared.accepted_table() }, { "bb aa", 42 })
        equal(#text(), #whole)
    end)

    it("rejects text that is cut, changed or of another version", function()
        empty()
        for i = 1, 20 do
            shared.put("h" .. i .. ".test", make(i))
        end
        local whole = text()
        empty()
        for cut = 0, #whole - 1 do
            equal((snapshot.read(whole:sub(1, cut))), nil, "cut at " .. cut)
        end
        for at = 1, #whole do
            local changed = whole:sub(1, at - 1) .. string.char((whole:byte(at) + 1) % 256) .. whole:sub(at + 1)
            equal((snapshot.read(changed)), nil, "changed at " .. at)
        end
        equal((snapshot.read((whole:gsub("routes 1", "routes 2")))), nil)
        equal((snapshot.read("")), nil)
        equal((snapshot.read(("\0"):rep(1000))), nil)
        equal(shared.size(), 0)
    end)

    it("never evicts a route to make room", function()
        empty()
        local kept = 0
        for i = 1, 20000 do
            shared.put("full" .. i .. ".test", make(1))
        end
        for i = 1, 20000 do
            kept = kept + (shared.has("full" .. i .. ".test") and 1 or 0)
        end
        truthy(kept > 1000 and kept < 20000, "kept " .. kept)
        truthy(shared.has("full1.test"), "the first is still there")
        equal(shared.size(), kept)
    end)

    it("accepts increasing serials only", function()
        empty()
        shared.accept_table("aa", 10)
        shared.accept_table(nil, 9)
        equal({ shared.accepted_table() }, { "aa", 10 })
        shared.forget_table()
        equal({ shared.accepted_table() }, {})
        equal(shared.operator_accepts(), 1)
    end)
end
