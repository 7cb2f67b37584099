-- The part of a policy that decides which instance gets a request.
--
--   {"weights":{"ip:port":3}, "log_keys":{"ip:port":"17"}, "draining":["ip:port"], "standby":["ip:port"],
--    "unhealthy":["ip:port"], "joined":{"ip:port":unix ms}, "slow_start_ms":30000,
--    "balance":{"algorithm":"round_robin"|"p2c"|"hash", "header":"X-User"|"cookie":"sid"|"address":true},
--    "shares":[{"version_type":"17","percent":95},…], "shares_by":{"header":"X-Version","cookie":"version",
--    "values":{"acme":"18"}},
--    "sticky":{"cookie":"signalbox","ttl_seconds":3600}}

local pairs, type = pairs, type

local _M = {}

local MAX_WEIGHT = 1000
local MAX_SLOW_START_MS = 3600 * 1000
local MAX_TTL = 365 * 86400
local MAX_UNIX_MS = 2 ^ 52

local function balance(given, take, rules)
    rules.algorithm = "round_robin"
    local algorithm = given.algorithm
    if algorithm == "p2c" then
        rules.algorithm = "p2c"
    elseif algorithm == "hash" then
        local by = take.header_variable(take.name(given.header, "balance.header"))
            or take.cookie_variable(take.name(given.cookie, "balance.cookie"))
            or given.address == true and "remote_addr"
        if not by then
            return take.refuse("balance", "a hash by header, cookie or address")
        end
        rules.algorithm, rules.hash_by = "hash", by
    elseif algorithm ~= nil and algorithm ~= "round_robin" then
        take.refuse("balance.algorithm", "round_robin, p2c or hash")
    end
end

-- { {version type, percent}, … }; nil when there is nothing to divide.
local function shares(given, take)
    local list, total = {}, 0
    for _, one in pairs(given) do
        local id = type(one) == "table" and one.version_type
        local percent = type(one) == "table" and take.number(one.percent, "shares[].percent", 0, 100)
        if percent and (type(id) == "string" or type(id) == "number") then
            list[#list + 1] = { take.log_key(id), percent }
            total = total + percent
        else
            take.refuse("shares", "an array of version types with their percent")
        end
    end
    return total > 0 and list or nil
end

function _M.read(given, take, rules)
    rules.log_keys = take.map(given.log_keys, "log_keys", take.log_key)
    rules.draining = take.set(given.draining, "draining")
    rules.standby = take.set(given.standby, "standby")
    rules.unhealthy = take.set(given.unhealthy, "unhealthy")
    rules.weights = take.map(given.weights, "weights", take.number, 0, MAX_WEIGHT)
    rules.joined = take.map(given.joined, "joined", take.number, 0, MAX_UNIX_MS)
    rules.slow_start_ms = take.number(given.slow_start_ms, "slow_start_ms", 1, MAX_SLOW_START_MS)
    balance(take.object(given.balance, "balance") or {}, take, rules)
    rules.shares = shares(take.object(given.shares, "shares") or {}, take)
    local by = take.object(given.shares_by, "shares_by")
    if by then
        rules.shares_header = take.header_variable(take.name(by.header, "shares_by.header"))
        rules.shares_cookie = take.cookie_variable(take.name(by.cookie, "shares_by.cookie"))
        if by.values ~= nil then
            rules.shares_values = take.map(by.values, "shares_by.values", take.log_key)
        end
    end
    local sticky = take.object(given.sticky, "sticky")
    if sticky then
        rules.sticky = take.name(sticky.cookie, "sticky.cookie") or "signalbox"
        rules.sticky_variable = take.cookie_variable(rules.sticky)
        -- Without it, the cookie lasts until the browser closes.
        rules.sticky_ttl = take.integer(sticky.ttl_seconds, "sticky.ttl_seconds", 1, MAX_TTL)
    end
end

return _M
