-- Sticky sessions: a cookie that brings a client back to its instance. Its value is two keyed digests, of the version
-- type and of the address. So it does not reveal addresses, cannot be forged, and is not valid for another host. When
-- the instance is gone, the first digest still keeps the client on its version type.

local crypto = require("signalbox.crypto")
local secret = require("signalbox.secret")

local sub, gsub, match = string.sub, string.gsub, string.match
local encode = ngx.encode_base64

local _M = {}

local ADDRESS_SIZE, TYPE_SIZE = 12, 6
local URL_SAFE = { ["+"] = "-", ["/"] = "_" }

local function token(name, kind, text, size)
    local digest = crypto.hmac(secret.of("sticky"), name .. "\0" .. kind .. "\0" .. text)
    return (gsub(encode(sub(digest, 1, size)), "[+/]", URL_SAFE))
end

-- The tokens of a special record: digest → address, digest → version type, and back. Made at its first sticky request.
local function tokens_of(record)
    local tokens = record.tokens
    if tokens then
        return tokens
    end
    tokens = { addresses = {}, types = {}, of = {} }
    local types = {}
    for i = 1, #record.addresses do
        local address = record.addresses[i]
        local id = record.rules.log_keys[address] or record.log_key
        types[id] = types[id] or token(record.name, "type", id, TYPE_SIZE)
        local own = token(record.name, "address", address, ADDRESS_SIZE)
        tokens.addresses[own] = address
        tokens.types[types[id]] = id
        tokens.of[address] = types[id] .. "." .. own
    end
    record.tokens = tokens
    return tokens
end

-- The address and the version type of a cookie's value; nil for a part that no longer exists or is invalid.
function _M.read(record, value)
    local id, address = match(value, "^([%w_-]+)%.([%w_-]+)$")
    if not id then
        return nil
    end
    local tokens = tokens_of(record)
    return tokens.addresses[address], tokens.types[id]
end

-- The cookie's value for an address of the record.
function _M.value(record, address)
    return tokens_of(record).of[address]
end

-- A Set-Cookie line. path: that of the rule that led to the record, so that the services of a host have separate
-- cookies.
function _M.cookie(record, address, secure, path)
    local rules = record.rules
    return rules.sticky .. "=" .. _M.value(record, address) .. "; Path=" .. (path or "/") .. "; HttpOnly; SameSite=Lax"
        .. (rules.sticky_ttl and "; Max-Age=" .. rules.sticky_ttl or "") .. (secure and "; Secure" or "")
end

return _M
