-- A ticket for one instance. The header `X-Signalbox-Target: <address>;<expires>;<signature>` sends a request to
-- exactly that instance of its host, even if it is draining or ejected; operators use it to inspect an instance.
-- `expires` is in unix seconds. The signature is HMAC-SHA-256, in hexadecimal, of "<host>\n<address>\n<expires>" with
-- the key for targets (secret.lua). So a ticket requires the key, is valid for one host, and expires.

local crypto = require("signalbox.crypto")
local secret = require("signalbox.secret")

local match, lower, format, byte, gsub = string.match, string.lower, string.format, string.byte, string.gsub
local tonumber = tonumber

local _M = {}

local function hex(bytes)
    return (gsub(bytes, ".", function(char)
        return format("%02x", byte(char))
    end))
end

-- Returns the address, or nil when the ticket is invalid for `host` at `time` (seconds).
function _M.read(ticket, host, time)
    local address, expires, signature = match(ticket, "^([^;]+);(%d+);(%x+)$")
    if not address or #expires > 12 or tonumber(expires) < time then
        return nil
    end
    local key = secret.of("target")
    local wanted = hex(crypto.hmac(key, host .. "\n" .. address .. "\n" .. expires))
    return crypto.same(key, wanted, lower(signature)) and address or nil
end

return _M
