-- Which instances of a host with a policy may get requests, as far as the policy alone decides: not those that are
-- draining, unhealthy or of weight 0. This is computed once, when the record is made. State that changes between
-- requests (ejections, tries already made) is decided in choose.lua.

local hash = require("signalbox.balance.hash")
local in_flight = require("signalbox.in_flight")

local random, next, pairs = math.random, next, pairs

local _M = {}

-- A list of addresses with its own cursor. The cursor is random so that workers do not all start with the same address.
local function list_of(from)
    local list, n = {}, 0
    for i = 1, #from do
        n = n + 1
        list[n] = from[i]
    end
    list.cursor = random(n + 1)
    return list
end

local function without(list, out)
    if not next(out) then
        return list
    end
    local left, n = {}, 0
    for i = 1, #list do
        if not out[list[i]] then
            n = n + 1
            left[n] = list[i]
        end
    end
    return left
end

-- Active checks can be wrong about all instances (for example when the prober's own network fails). They never remove
-- more than half of a host; beyond that the host fails open and every instance gets requests.
local function healthy(list, unhealthy)
    local left = without(list, unhealthy)
    if (#list - #left) * 2 > #list then
        return list, true
    end
    return left, false
end

-- Weight 0 means no requests, unless every instance has it.
local function weighty(list, weights)
    local none = {}
    for i = 1, #list do
        none[list[i]] = weights[list[i]] == 0 or nil
    end
    local left = without(list, none)
    if #left == 0 then
        return list, true
    end
    return left, false
end

local function uneven(list, weights)
    local first = weights[list[1]] or 1
    for i = 2, #list do
        if (weights[list[i]] or 1) ~= first then
            return true
        end
    end
    return false
end

-- Whether the hot path can serve the host: no request has to wait or be answered by the edge, and the end of a request
-- matters only for the number of requests in flight.
local function is_light(record)
    local rules = record.rules
    if rules.algorithm == "p2c" and not in_flight.can_watch_end then
        return false
    end
    return #record.candidates > 0 and not (rules.guarded or rules.pause or rules.sticky or rules.timeouts
        or rules.buffering or rules.tls or rules.grpc or rules.response_headers)
end

-- Adds to a special record: `usable` (not draining), `candidates` (may get new requests), `groups` (version type → its
-- candidates) when the policy has shares, `fail_open`, `light` (the hot path can serve it), `by_path` (the hot path can
-- apply its rules for paths), `counted` (its requests in flight are counted), and what the algorithms keep between
-- requests.
function _M.fill(record)
    local rules = record.rules
    -- A draining instance finishes its requests and gets no new ones, even if it is the last one. Then the host has no
    -- instance, as if it had been removed.
    record.usable = without(record.addresses, rules.draining)
    local fit, open = healthy(record.usable, rules.unhealthy)
    record.fail_open = open
    local fit_list, weightless = weighty(fit, rules.weights)
    record.candidates, record.weightless = list_of(fit_list), weightless
    record.weighted = not weightless and #fit_list > 1 and uneven(fit_list, rules.weights)
    -- State of weighted round robin, and how many requests this worker has routed with the record.
    record.gained, record.served = {}, 0
    if rules.algorithm == "hash" then
        record.seeds = hash.seeds(record.addresses)
    end
    if rules.shares then
        record.groups = {}
        for i = 1, #record.candidates do
            local address = record.candidates[i]
            local id = rules.log_keys[address] or record.log_key
            local group = record.groups[id] or { cursor = 0 }
            group[#group + 1] = address
            record.groups[id] = group
        end
        for _, group in pairs(record.groups) do
            group.cursor = random(#group)
        end
    end
    record.light = is_light(record)
    record.by_path = rules.paths ~= nil and not (rules.guarded or rules.pause or rules.response_headers)
    record.counted = rules.algorithm == "p2c"
    -- When the last slow start ends, unix milliseconds.
    record.slow_until = 0
    if rules.slow_start_ms then
        for i = 1, #record.candidates do
            local joined = rules.joined[record.candidates[i]]
            if joined and joined + rules.slow_start_ms > record.slow_until then
                record.slow_until = joined + rules.slow_start_ms
            end
        end
    end
end

return _M
