-- The reader, with streams that are cut anywhere and with peers that violate the protocol.

local resp = require("signalbox.resp")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

-- A source that returns `text` in pieces of `size` bytes, then ends.
local function pieces(text, size)
    local at = 1
    return function()
        if at > #text then
            return nil, "closed"
        end
        local piece = text:sub(at, at + size - 1)
        at = at + size
        return piece
    end
end

local function read_all(text, size)
    local reader = resp.reader(pieces(text, size))
    local values = {}
    while true do
        local value, kind = reader:next()
        if value == nil then
            return values, kind
        end
        values[#values + 1] = { value, kind }
    end
end

local STREAM = "+OK\r\n-LOADING wait\r\n:42\r\n$5\r\na\r\nb\r\r\n$0\r\n\r\n$-1\r\n_\r\n#t\r\n#f\r\n,1.5\r\n(123456\r\n"
    .. "*3\r\n$1\r\nx\r\n_\r\n:7\r\n~1\r\n+a\r\n%1\r\n+k\r\n+v\r\n=6\r\ntxt:hi\r\n!5\r\nERR x\r\n*-1\r\n*0\r\n"
    .. "|1\r\n+ttl\r\n:3\r\n+after\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$11\r\ninstances:x\r\n"
    .. ">2\r\n$10\r\ninvalidate\r\n_\r\n"

local WANT = {
    { "OK", "+" }, { "LOADING wait", "-" }, { 42, ":" }, { "a\r\nb\r", "$" },
}

return function(it)
    it("reads every type, wherever the stream is cut", function()
        local whole = read_all(STREAM, #STREAM)
        for i = 1, #WANT do
            equal(whole[i], WANT[i])
        end
        equal(#whole, 21)
        equal(whole[12], { { "x", resp.null, 7 }, "*" })
        equal(whole[19], { "after", "+" })
        equal(whole[20], { { "invalidate", { "instances:x" } }, ">" })
        equal(whole[21], { { "invalidate", resp.null }, ">" })
        for size = 1, 40 do
            local torn, reason = read_all(STREAM, size)
            equal(torn, whole, "in pieces of " .. size)
            equal(reason, "closed")
        end
    end)

    it("continues after a source that had to wait inside a frame", function()
        local parts, at, waits = { "$11\r\nhello", " wo", "rld\r", "\n+OK\r\n" }, 0, 0
        local reader = resp.reader(function()
            waits = waits + 1 -- a link would have sent a PING here
            at = at + 1
            return parts[at], "closed"
        end)
        equal(reader:next(), "hello world")
        equal(reader:next(), "OK")
        equal(waits, 4)
    end)

    it("reads a large value in small pieces", function()
        local big = ("0123456789"):rep(100000)
        local values = read_all("$" .. #big .. "\r\n" .. big .. "\r\n:1\r\n", 4096)
        equal(#values, 2)
        truthy(values[1][1] == big, "the same value")
    end)

    it("rejects what Redis never sends", function()
        local hostile = {
            "?\r\n", "\r\n", "$5x\r\nhello\r\n", "$-2\r\n", "$0x10\r\n", "$1e3\r\n", "$ 5\r\n", "*-5\r\n", "*nan\r\n",
            "$99999999999\r\n", "*99999999\r\n", ":x\r\n", "$3\r\nabcde\r\n", ("*1\r\n"):rep(100) .. ":1\r\n",
            ("x"):rep(70000), ("|0\r\n"):rep(1) .. "?\r\n",
        }
        for i = 1, #hostile do
            local values, reason = read_all(hostile[i], 1000)
            equal(#values, 0, "values of hostile " .. i)
            truthy(reason:find("^protocol"), "reason of hostile " .. i .. " is " .. reason)
        end
    end)

    it("survives random bytes", function()
        math.randomseed(runner.seed)
        for _ = 1, 2000 do
            local bytes = {}
            for i = 1, math.random(40) do
                local alphabet = "$*>%~+-:_#,(!=|0123456789\r\n\r\n\r\nab"
                local at = math.random(#alphabet)
                bytes[i] = alphabet:sub(at, at)
            end
            local _, reason = read_all(table.concat(bytes), math.random(7))
            truthy(reason == "closed" or reason:find("^protocol"), reason)
        end
    end)

    it("writes commands", function()
        equal(resp.command("GET", "a\r\nb", 7), "*3\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n$1\r\n7\r\n")
    end)
end
