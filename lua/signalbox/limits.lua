-- Limits of a host, shared by the workers of a router.
--
-- Requests: the generic cell rate algorithm (ITU-T I.371): for each client one number, the moment at which all it has
-- asked for would have been served at the allowed rate. A request that comes too long before that is refused. Reading
-- and writing it are two steps, so two workers at the same instant may let one request more through; none less.
--
-- Connections: a count that goes up before the request and down in its log phase. It is forgotten after an hour without
-- a new request, because a worker that was killed never takes its part back.
--
--   signalbox_limits   "r|<name>|<client>"  milliseconds;  "c|<name>|<client>"  requests under way

local ceil = math.ceil
local sub, byte = string.sub, string.byte
local now, md5 = ngx.now, ngx.md5_bin
local log, WARN = ngx.log, ngx.WARN
local var = ngx.var

local dict = ngx.shared.signalbox_limits

local _M = {}

local FORGET = 3600
local LONG = 32

-- Whom a limit counts this request for.
local function client(by)
    if not by then
        return ""
    end
    local key = by ~= "address" and var[by] or nil
    if key and key ~= "" then
        -- Headers are as long as clients like.
        return "k" .. (#key > LONG and md5(key) or key)
    end
    -- Who does not say who it is counts by address, or leaving the header out would be the way around the limit.
    local address = var.binary_remote_addr
    -- Whoever has one IPv6 address has the whole /64.
    return (#address == 16 and byte(address, 1) ~= 0) and "6" .. sub(address, 1, 8) or "4" .. address
end

local warned = false

local function full(err)
    if not warned then
        warned = true
        log(WARN, "the memory of the limits is full (", err, "); some requests are not counted")
    end
end

-- nil when the request may pass, else the seconds after which it may.
function _M.request(name, rules)
    local key = "r|" .. name .. "|" .. client(rules.rate_by)
    local time, interval = now() * 1000, 1000 / rules.rate
    local due = dict:get(key)
    if not due or due < time then
        due = time
    end
    -- The burst, and the one that a client at exactly the rate has in hand.
    local early = due - time - rules.burst * interval
    if early > 0.5 then
        return ceil(early / 1000)
    end
    local ok, err = dict:set(key, due + interval, (due + interval - time) / 1000 + 1)
    if not ok then
        full(err)
    end
    return nil
end

-- What has to be given back with release() when the request ends, or nil when there are too many.
function _M.claim(name, rules)
    local key = "c|" .. name .. "|" .. client(rules.connections_by)
    local count, err = dict:incr(key, 1, 0, FORGET)
    if not count then
        full(err)
        return ""
    elseif count > rules.most_connections then
        dict:incr(key, -1)
        return nil
    end
    return key
end

function _M.release(key)
    local count = dict:incr(key, -1)
    -- Below: it was forgotten in between.
    if count and count <= 0 then
        dict:delete(key)
    end
end

return _M
