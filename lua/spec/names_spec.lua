-- Host names, candidates and instance addresses.

local address = require("signalbox.address")
local equal = require("runner").equal
local hostname = require("signalbox.hostname")

local function candidates(host)
    local list = {}
    local n = hostname.candidates(host, list)
    return table.concat(list, " ", 1, n)
end

return function(it)
    it("asks from the most specific name to the catch-all", function()
        equal(candidates("a.b.example.org"), "a.b.example.org *.b.example.org *.example.org *.org *")
        equal(candidates("localhost"), "localhost *")
    end)

    it("does not use a wildcard for its own apex", function()
        equal(candidates("example.org"), "example.org *.org *")
    end)

    it("uses at most ten names, the catch-all included", function()
        local deep = candidates("a.b.c.d.e.f.g.h.i.j.k.l.example.org")
        local _, spaces = deep:gsub(" ", "")
        equal(spaces, 9)
        equal(deep:sub(-2), " *")
        equal(deep:match("^%S+ (%S+)"), "*.b.c.d.e.f.g.h.i.j.k.l.example.org")
    end)

    it("distinguishes an address from a name", function()
        equal(candidates("10.0.0.1"), "10.0.0.1 *")
        equal(candidates("[::1]"), "[::1] *")
    end)

    it("handles odd dots", function()
        equal(candidates("a."), "a. *")
        equal(candidates("a..b"), "a..b *..b *.b *")
        equal(candidates("."), ". *")
    end)

    it("rejects hosts that cannot be registered", function()
        equal(hostname.valid("shop.example-1.org"), true)
        equal(hostname.valid("_dmarc.x"), true)
        equal(hostname.valid("[::1]"), true)
        equal(hostname.valid("*.example.org"), false)
        equal(hostname.valid(".example.org"), false)
        equal(hostname.valid("a b"), false)
        equal(hostname.valid("a\0b"), false)
        equal(hostname.valid("caf\195\169.org"), false)
        equal(hostname.valid(("x"):rep(254)), false)
        equal(hostname.valid(("x"):rep(253)), true)
    end)

    it("accepts pushes for hosts and wildcards only", function()
        equal(hostname.valid_name("*"), true)
        equal(hostname.valid_name("*.a.b"), true)
        equal(hostname.valid_name("#17"), false)
        equal(hostname.valid_name("*.*.b"), false)
        equal(hostname.valid_name(""), false)
    end)

    it("accepts the three forms of an address", function()
        for _, good in ipairs({
            "127.0.0.1:9001", "10.1.2.3:65535", "[::1]:80", "[fe80::1:2]:9", "unix:/run/app.sock",
        }) do
            equal(address.valid(good), true, good)
        end
        for _, bad in ipairs({
            "", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:000080", "256.0.0.1:80", "1.2.3:80",
            "host:80", "::1:80", "[]:80", "[127.0.0.1]:80", "unix:", "unix:/", "unix:relative", "unix:/a:b",
            "unix:/a b", "unix:/run//a", "unix:/run/./a", "unix:/run/../a", "unix:/run/",
            "unix:/" .. ("x"):rep(120), "127.0.0.1:80 ", "127.0.0.1:80\n", " 127.0.0.1:80",
            "127.0.0.1:+80", "127.0.0.1:0x50",
        }) do
            equal(address.valid(bad), false, bad)
        end
    end)

    it("recognizes the addresses of Signalbox itself in every spelling", function()
        address.reserve("127.0.0.1:6402 0.0.0.0:8080 10.0.0.5:8081 unix:/run/routes.sock")
        for _, own in ipairs({
            "127.0.0.1:6402", "127.9.9.9:6402", "0.0.0.0:6402", "[::1]:6402", "[::]:6402", "[::ffff:127.0.0.1]:6402",
            "[::ffff:7f00:1]:6402", "[0:0:0:0:0:0:0:1]:8080", "127.0.0.1:8080", "10.0.0.5:8081",
            "[::ffff:10.0.0.5]:8081", "unix:/run/routes.sock", "unix:/var/run/routes.sock",
        }) do
            equal(address.is_reserved(own), true, own)
        end
        for _, other in ipairs({
            "127.0.0.1:6403", "10.0.0.5:6402", "127.0.0.1:8081", "[fe80::1]:6402", "unix:/run/app.sock",
        }) do
            equal(address.is_reserved(other), false, other)
        end
        -- A wildcard is every address of this machine. 203.0.113.77 is an address for documentation.
        local socket = io.popen("hostname -I 2>/dev/null")
        local own = socket:read("*a"):match("^%d+%.%d+%.%d+%.%d+")
        socket:close()
        if own then
            equal(address.is_reserved(own .. ":8080"), true, own)
            equal(address.is_reserved(own .. ":6402"), false, own)
        end
        equal(address.is_reserved("203.0.113.77:8080"), false)
        equal(address.is_reserved("[2001:db8::1]:8080"), false)
        address.reserve("unix:/var/run/routes.sock")
        equal(address.is_reserved("unix:/run/routes.sock"), true)
        address.reserve("")
        equal(address.is_reserved("127.0.0.1:6402"), false)
    end)
end
