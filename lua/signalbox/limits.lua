-- Limits of a host, shared by the workers of a router.
--
-- Requests: the generic cell rate algorithm (ITU-T I.371). It keeps one number per client: the time at which all its
-- requests would have been served at the allowed rate. A request that arrives too long before that time is rejected.
-- Workers decide at the same instant, so each adds its request to the time in one step, and subtracts it again if it is
-- rejected. Only two first requests after a pause may count as one.
--
-- Connections: a count that is incremented before the request and decremented in its log phase (claims.lua).
--
-- When the memory is full, new clients are not counted. No counter is evicted: a client that invents a header value for
-- each request could otherwise end the limits of all others.
--
--   signalbox_limits   "r|<rate>/<burst>|<name>|<client>"  milliseconds of clock.lua
--                      "c|<name>|<client>"  requests in flight

local claims = require("signalbox.claims")
local clock = require("signalbox.clock")

local ceil = math.ceil
local sub = string.sub
local now, md5 = clock.now, ngx.md5_bin
local log, WARN = ngx.log, ngx.WARN
local var = ngx.var

local dict = ngx.shared.signalbox_limits

local _M = {}

local MAX_KEY_BYTES = 32
-- The prefix of an IPv4 address in an IPv6 one, as a listener for both has it.
local MAPPED = ("\0"):rep(10) .. "\255\255"

-- A binary address of a client as a key for counting. A client with one IPv6 address usually has its whole /64.
local function key_of_address(address)
    if #address ~= 16 then
        return "4" .. address
    elseif sub(address, 1, 12) == MAPPED then
        return "4" .. sub(address, 13)
    end
    return "6" .. sub(address, 1, 8)
end
_M.key_of_address = key_of_address

local function address_key()
    return key_of_address(var.binary_remote_addr)
end
_M.address = address_key

-- The key under which a limit counts this request. with_address: whether a value of the header is counted for each
-- address separately, so that no client can use up another client's limit by sending its value.
local function client(by, with_address)
    if not by then
        return ""
    end
    local key = by ~= "address" and var[by] or nil
    if key and key ~= "" then
        -- A header value can have any length.
        key = "k" .. (#key > MAX_KEY_BYTES and md5(key) or key)
        return with_address and address_key() .. key or key
    end
    -- A client that omits the header is counted by its address. Otherwise it would avoid the limit.
    return address_key()
end

local warned = false

local function full(err)
    if not warned then
        warned = true
        log(WARN, "the memory for limits is full (", err, "); some requests are not counted")
    end
end

-- Returns nil if the request may pass, otherwise the seconds until it may.
function _M.request(name, rules)
    -- The stored time means something else under another limit: when a limit is raised, no client must stay rejected.
    local limit = rules.rate .. "/" .. rules.burst
    local key = "r|" .. limit .. "|" .. name .. "|" .. client(rules.rate_by, rules.rate_by_address)
    local time, interval = now() * 1000, 1000 / rules.rate
    local due = dict:incr(key, interval)
    if not due then
        local ok, err = dict:safe_add(key, time + interval, interval / 1000 + 1)
        if ok then
            return nil
        end
        -- Another worker may have added the client in the meantime.
        due = err == "exists" and dict:incr(key, interval)
        if not due then
            if err ~= "exists" then
                full(err)
            end
            return nil
        end
    end
    local early = due - interval - time
    -- The burst, plus the one request that a client exactly at the rate always has.
    local over = early - rules.burst * interval
    if over > 0.5 then
        dict:incr(key, -interval)
        return ceil(over / 1000)
    elseif early < 0 then
        dict:replace(key, time + interval, interval / 1000 + 1)
    else
        dict:expire(key, (due - time) / 1000 + 1)
    end
    return nil
end

-- Returns the argument of release() for the end of the request, or nil if there are too many requests.
function _M.claim(name, rules)
    local key = "c|" .. name .. "|" .. client(rules.connections_by, rules.connections_by_address)
    local count, err = claims.take(key)
    if not count then
        full(err)
        return ""
    elseif count > rules.max_connections then
        claims.give_back(key)
        return nil
    end
    return key
end

_M.release = claims.give_back

return _M
