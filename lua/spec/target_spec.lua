local crypto = require("signalbox.crypto")
local equal = require("runner").equal
local secret = require("signalbox.secret")
local target = require("signalbox.target")

return function(it)
    it("accepts a ticket only with the right key, host, address and time", function()
        secret.set(("s"):rep(32))
        local function hex(text)
            return (text:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
        end
        local sign = hex(crypto.hmac(secret.of("target"), "h.test\n127.0.0.1:1\n2000"))
        local ticket = "127.0.0.1:1;2000;" .. sign
        equal(target.read(ticket, "h.test", 2000), "127.0.0.1:1")
        equal(target.read(ticket:upper(), "h.test", 1), "127.0.0.1:1")
        equal(target.read(ticket, "h.test", 2001), nil)
        equal(target.read(ticket, "i.test", 2000), nil)
        equal(target.read("127.0.0.1:2;2000;" .. sign, "h.test", 2000), nil)
        equal(target.read("127.0.0.1:1;2001;" .. sign, "h.test", 2000), nil)
        equal(target.read("127.0.0.1:1;2000;", "h.test", 2000), nil)
        equal(target.read(("9"):rep(5000), "h.test", 2000), nil)
        -- RFC 4231, test case 2.
        equal(hex(crypto.hmac("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
    end)
end
