-- The state of every instance of a host as JSON, as this worker sees it. Ejections are shared by all workers.
--
--   {"host":"a.example.org", "matched":"*.example.org", "plain":false, "algorithm":"p2c", "fail_open":false,
--    "worker":0, "instances":[{"address":"127.0.0.1:9001", "version_type":"17", "weight":1,
--      "state":"in"|"draining"|"unhealthy"|"ejected", "until_ms":0, "times":0, "failures":0, "in_flight":0}, …]}
--
-- until_ms: end of the ejection; times: ejections since longest_ms without a failure (outliers.lua); failures: in a
-- row; in_flight: requests in flight from this worker, counted where the policy needs it.

local in_flight = require("signalbox.in_flight")
local json = require("signalbox.json")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")

local format, concat = string.format, table.concat

local _M = {}

local function state_of(rules, address, till)
    if rules and rules.draining[address] then
        return "draining"
    elseif rules and rules.unhealthy[address] then
        return "unhealthy"
    end
    return till > 0 and "ejected" or "in"
end

local function instance(route, rules, address)
    local till, times, failures = outliers.describe(address)
    return format('{"address":%s,"version_type":%s,"weight":%.15g,"state":"%s","until_ms":%.0f,"times":%d,'
            .. '"failures":%d,"in_flight":%d}',
        json.string(address), json.string(record.log_key(route, address)), rules and rules.weights[address] or 1,
        state_of(rules, address, till), till, times, failures, in_flight.of(address))
end

-- name: the name in the table that matched `host`.
function _M.host(host, name, route)
    local rules = record.rules(route)
    local list, from, to = record.addresses(route)
    local parts = {}
    for i = from, to do
        parts[#parts + 1] = instance(route, rules, list[i])
    end
    return format('{"host":%s,"matched":%s,"plain":%s,"algorithm":"%s","fail_open":%s,"worker":%d,"instances":[%s]}',
        json.string(host), json.string(name), rules and "false" or "true", rules and rules.algorithm or "round_robin",
        rules and route.fail_open and "true" or "false", ngx.worker.id() or -1, concat(parts, ","))
end

return _M
