-- Basic authentication (RFC 7617). The table has only hashes, as htpasswd and `openssl passwd` make them. libcrypt
-- checks a password, which takes milliseconds in which the worker does nothing else. So a correct password is
-- remembered, by a keyed digest, and new ones are checked at a limited rate: guessing cannot slow down other requests.
-- An address gets only a part of that rate, so that a client that guesses does not keep others from logging in.

local answer = require("signalbox.answer")
local bounded = require("signalbox.bounded")
local clock = require("signalbox.clock")
local crypto = require("signalbox.crypto")
local ffi = require("ffi")
local limits = require("signalbox.limits")
local secret = require("signalbox.secret")

local var, req = ngx.var, ngx.req
local find, match = string.find, string.match
local max, min, next = math.max, math.min, next
local decode = ngx.decode_base64

ffi.cdef("char *crypt_r(const char *password, const char *setting, void *data);")
-- nginx links libcrypt for its own basic authentication.
local has_symbol = pcall(function()
    return ffi.C.crypt_r
end)
local library = has_symbol and ffi.C or ffi.load("crypt")

local _M = {}

-- Larger than struct crypt_data of every libcrypt.
local WORKSPACE_SIZE = 256 * 1024
local workspace
local MAX_PASSWORD = 512

-- Per worker.
local CHECKS_PER_SECOND, MAX_CHECKS = 20, 20
local checks, checked_at = MAX_CHECKS, 0

-- The same for each client address.
local INTERVAL_OF_ADDRESS, BURST_OF_ADDRESS = 0.25, 8
-- Address → the time at which its checks would be done at the allowed rate.
local due = bounded.new(4096)

local good = bounded.new(4096)

local function may_check()
    local time, address = clock.now(), limits.address()
    local own = max(due:get(address) or 0, time)
    checks = min(MAX_CHECKS, checks + (time - checked_at) * CHECKS_PER_SECOND)
    checked_at = time
    if checks < 1 or own - time > (BURST_OF_ADDRESS - 1) * INTERVAL_OF_ADDRESS then
        return false
    end
    checks = checks - 1
    due:set(address, own + INTERVAL_OF_ADDRESS)
    return true
end

-- Whether the hash is that of the password; nil if too many passwords were checked recently.
local function has_hash(password, hash)
    local key = crypto.hmac(secret.of("access"), hash .. "\0" .. password)
    if good:get(key) then
        return true
    elseif not may_check() then
        return nil
    end
    workspace = workspace or ffi.new("unsigned char[?]", WORKSPACE_SIZE)
    local made = library.crypt_r(password, hash, workspace)
    local same = made ~= nil and crypto.same(key, ffi.string(made), hash)
    if same then
        good:set(key, true)
    end
    return same
end

-- User and password of the request.
local function credentials()
    local encoded = match(var.http_authorization or "", "^[Bb][Aa][Ss][Ii][Cc] +([%w+/=]+)$")
    local text = encoded and decode(encoded)
    if not text or #text > MAX_PASSWORD or find(text, "%z") then
        return nil
    end
    return match(text, "^([^:]*):(.*)$")
end

-- Answers a request without valid credentials. The instance does not receive the password.
function _M.check(rules)
    local user, password = credentials()
    if user then
        local hash = rules.users[user]
        -- An unknown user is checked like a known one, so that the duration does not reveal which users exist.
        local _, any = next(rules.users)
        local same = has_hash(password, hash or any)
        if same == nil then
            return answer.problem(429, "too_many_requests", "Too many passwords are checked here. Try again.", 1)
        elseif same and hash then
            return req.clear_header("Authorization")
        end
    end
    ngx.header["WWW-Authenticate"] = rules.challenge
    return answer.problem(401, "unauthorized", "This host requires a user name and a password.")
end

return _M
