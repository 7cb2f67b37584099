-- Chooses the instance for a request, at the first attempt and after a failure.
--
--   target (a ticket for one instance) ─▶ sticky cookie ─▶ share (version type) ─▶ without ejected ones ─▶ algorithm

local hash = require("signalbox.balance.hash")
local in_flight = require("signalbox.in_flight")
local outliers = require("signalbox.outliers")
local p2c = require("signalbox.balance.p2c")
local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")
local shares = require("signalbox.balance.shares")
local slow_start = require("signalbox.balance.slow_start")
local sticky = require("signalbox.balance.sticky")
local weighted = require("signalbox.balance.weighted")

local now, random = ngx.now, math.random
local var = ngx.var
local rules_of = record.rules

local _M = {}

local function weight_of(address, route, now_ms)
    local rules = route.rules
    local weight = route.weightless and 1 or rules.weights[address] or 1
    if rules.slow_start_ms then
        local restored = outliers.restored_at(address)
        local joined = rules.joined[address]
        if restored and (not joined or restored * 1000 > joined) then
            joined = restored * 1000
        end
        weight = weight * slow_start.factor(joined, now_ms, rules.slow_start_ms)
    end
    return weight
end

-- Chooses one of `list`, which is not empty, by the host's algorithm.
local function by_algorithm(route, list)
    local rules = route.rules
    local now_ms = now() * 1000
    -- An instance that was restored after an ejection also has a slow start. The set of such instances changes over
    -- time, so the weights are then computed for each request.
    local uneven = route.weighted or now_ms < route.slow_until
        or (rules.slow_start_ms and outliers.restored_within(rules.slow_start_ms))
    if rules.algorithm == "p2c" then
        if uneven then
            return p2c.pick_weighted(list, in_flight.of, weight_of, route, now_ms)
        end
        return p2c.pick(list, in_flight.of)
    end
    local key = rules.hash_by and var[rules.hash_by]
    if key then
        if uneven then
            return hash.pick_weighted(list, route.seeds, key, weight_of, route, now_ms)
        end
        return hash.pick(list, route.seeds, key)
    end
    -- This is also used for a client without a hash key: sending all such clients to one instance would overload it.
    if uneven then
        return weighted.pick(list, route.gained, weight_of, route, now_ms)
    end
    return round_robin.next(list)
end

-- The version type that a header or a cookie of the request selects: through the listed values, or by its name.
local function named_by(rules, variable)
    local value = variable and var[variable]
    if value and rules.shares_values then
        return rules.shares_values[value]
    end
    return value
end

-- The version type of this request: by header, by cookie, by an earlier choice, or at random. The second value is true
-- if the client selected it.
local function share_of(route, earlier)
    local rules, groups = route.rules, route.groups
    local wanted = named_by(rules, rules.shares_header)
    if not (wanted and groups[wanted]) then
        wanted = named_by(rules, rules.shares_cookie)
    end
    if wanted and groups[wanted] then
        return wanted, true
    end
    if earlier and groups[earlier] and shares.has(rules.shares, earlier) then
        return earlier, false
    end
    return shares.pick(rules.shares, groups, random()), false
end

-- The instance of a client's sticky session, if it may still be used, and the session's version type.
local function earlier_choice(route)
    local value = var[route.rules.sticky_variable]
    if not value then
        return nil
    end
    local address, version_type = sticky.read(route, value)
    if address and (route.rules.standby[address] or (route.rules.unhealthy[address] and not route.fail_open)
        or (outliers.any() and outliers.is_ejected(address))) then
        address = nil
    end
    return address, version_type
end

local function by_policy(route)
    local rules = route.rules
    local address, version_type
    if rules.sticky then
        address, version_type = earlier_choice(route)
    end
    local list = route.candidates
    if route.groups then
        local share, forced = share_of(route, version_type)
        -- A session stays at its instance while its version type is served, unless the client selects another one.
        if address and (forced and version_type ~= share or not shares.has(rules.shares, version_type)) then
            address = nil
        end
        list = share and route.groups[share] or list
    end
    if address or #list == 0 then
        return address
    end
    if outliers.any() then
        list = outliers.without(list, route.candidates)
        if #list == 0 then
            -- All instances of the version type are ejected. Another version is better than no answer.
            list = outliers.without(route.candidates, route.candidates)
        end
    end
    return by_algorithm(route, list)
end

-- Whether a host whose instances are all draining still has one for this client, because of its session.
function _M.has_session(route)
    return route.rules.sticky ~= nil and earlier_choice(route) ~= nil
end

-- The instance for a request's first try; nil when there is none.
function _M.first(route)
    if not rules_of(route) then
        return outliers.any() and outliers.pick(route) or record.plain_next(route)
    end
    route.served = route.served + 1
    return by_policy(route)
end

-- The addresses of `list` that were not tried and are not ejected.
local function untried(list, tried, even_ejected)
    local left, n = {}, 0
    for i = 1, #list do
        if not tried[list[i]] and (even_ejected or not outliers.is_ejected(list[i])) then
            n = n + 1
            left[n] = list[i]
        end
    end
    left.cursor = n
    return n > 0 and left or nil
end

-- The instance for one more try: preferably of the same version type, then any, then an ejected one. tried: a set. The
-- second value is true if all were tried; then the instance is one of those.
function _M.another(route, tried, last)
    if not rules_of(route) then
        return outliers.after(route, last, tried)
    elseif #route.candidates == 0 then
        return last, true
    end
    local list = route.candidates
    outliers.any()
    local group = route.groups and route.groups[record.log_key(route, last)]
    local left = group and untried(group, tried) or untried(list, tried) or untried(list, tried, true)
    if left then
        return by_algorithm(route, left), false
    end
    return round_robin.after(list, 1, #list, last, tried)
end

return _M
