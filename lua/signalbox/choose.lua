-- Which instance a request goes to, in @full: the first time, and after a failure.
--
--   target (a ticket for one instance) ─▶ sticky cookie ─▶ share (version type) ─▶ without what is ejected ─▶ algorithm

local outliers = require("signalbox.outliers")
local hash = require("signalbox.balance.hash")
local in_flight = require("signalbox.in_flight")
local p2c = require("signalbox.balance.p2c")
local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")
local shares = require("signalbox.balance.shares")
local slow_start = require("signalbox.balance.slow_start")
local sticky = require("signalbox.balance.sticky")
local weighted = require("signalbox.balance.weighted")

local now, random = ngx.now, math.random
local var = ngx.var

local _M = {}

-- How many instances may get requests.
function _M.instances(route)
    if record.is_plain(route) then
        return #route - record.FIRST + 1
    end
    return #route.candidates
end

function _M.log_key_of(route, address)
    if record.is_plain(route) then
        return route[record.LOG_KEY]
    end
    return route.rules.log_keys[address] or route.log_key
end

-- Requests that this worker has routed with the record.
function _M.cursor_of(route)
    return record.is_plain(route) and route[record.CURSOR] or route.served
end

local function weight_of(address, route, now_ms)
    local rules = route.rules
    local weight = route.weightless and 1 or rules.weights[address] or 1
    if rules.slow_start_ms then
        local back = outliers.returned_at(address)
        local joined = rules.joined[address]
        if back and (not joined or back * 1000 > joined) then
            joined = back * 1000
        end
        weight = weight * slow_start.factor(joined, now_ms, rules.slow_start_ms)
    end
    return weight
end

-- By the host's algorithm, one of `list`, which is not empty.
local function by_algorithm(route, list)
    local rules = route.rules
    local now_ms = now() * 1000
    -- An instance that came back from an ejection starts slowly too; who that is changes, so weights are looked at.
    local uneven = route.weighted or now_ms < route.slow_until
        or (rules.slow_start_ms and outliers.returned_lately(now_ms, rules.slow_start_ms))
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
    -- Also for who brings no key to hash: all of them at one instance would be a crowd.
    if uneven then
        return weighted.pick(list, route.gained, weight_of, route, now_ms)
    end
    return round_robin.next(list)
end

-- The version type that this request is for: by header, by cookie, by an earlier choice, by chance.
local function share_of(route, earlier)
    local rules, groups = route.rules, route.groups
    local wanted = rules.shares_header and var[rules.shares_header]
    if not (wanted and groups[wanted]) then
        wanted = rules.shares_cookie and var[rules.shares_cookie]
    end
    if wanted and groups[wanted] then
        return wanted, true
    end
    if earlier and groups[earlier] and shares.has(rules.shares, earlier) then
        return earlier, false
    end
    return shares.pick(rules.shares, groups, random()), false
end

-- Where a sticky client was, if it may go there again, and the version type it had.
local function earlier_choice(route)
    local value = var[route.rules.sticky_variable]
    if not value then
        return nil
    end
    local address, version_type = sticky.read(route, value)
    if address and ((route.rules.unhealthy[address] and not route.fail_open)
        or (outliers.any() and outliers.is_out(address))) then
        address = nil
    end
    return address, version_type
end

local function special(route)
    local rules = route.rules
    local address, version_type
    if rules.sticky then
        address, version_type = earlier_choice(route)
    end
    local list = route.candidates
    if route.groups then
        local share, forced = share_of(route, version_type)
        -- Sticky to an instance whose version type is still served, unless the client asks for another by name.
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
            -- All of the share. Another version is a better answer than none.
            list = outliers.without(route.candidates, route.candidates)
        end
    end
    return by_algorithm(route, list)
end

-- Whether a host whose instances are all draining still has one for this client: where its session is.
function _M.has_session(route)
    return route.rules.sticky ~= nil and earlier_choice(route) ~= nil
end

-- The instance for a request's first try; nil when there is none.
function _M.first(route)
    if record.is_plain(route) then
        return outliers.any() and outliers.pick(route) or round_robin.pick(route)
    end
    route.served = route.served + 1
    return special(route)
end

-- Those of `list` that were not tried and are not out.
local function untried(list, tried, even_out)
    local left, n = {}, 0
    for i = 1, #list do
        if not tried[list[i]] and (even_out or not outliers.is_out(list[i])) then
            n = n + 1
            left[n] = list[i]
        end
    end
    left.cursor = n
    return n > 0 and left or nil
end

-- The instance for one more try: of the same version type if it has one left, then any, at last one that is ejected.
-- tried: a set. Second value: true when all were tried, and it is one of those again.
function _M.another(route, tried, last)
    if record.is_plain(route) then
        return outliers.after(route, last, tried)
    elseif #route.candidates == 0 then
        return last, true
    end
    local list = route.candidates
    outliers.any()
    local group = route.groups and route.groups[_M.log_key_of(route, last)]
    local left = group and untried(group, tried) or untried(list, tried) or untried(list, tried, true)
    if left then
        return by_algorithm(route, left), false
    end
    return round_robin.after(list, 1, #list, last, tried)
end

return _M
