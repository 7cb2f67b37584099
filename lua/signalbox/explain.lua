-- The state of every instance of a host as JSON, as this worker and what all workers share have it.
--
--   {"host":"a.example.org", "matched":"*.example.org", "plain":false, "algorithm":"p2c", "fail_open":false,
--    "worker":0, "instances":[{"address":"127.0.0.1:9001", "version_type":"17", "weight":1,
--      "state":"in"|"draining"|"unhealthy"|"ejected", "until_ms":0, "times":0, "failures":0, "in_flight":0}, …]}
--
-- until_ms: when an ejected one comes back; times: ejections not forgotten yet; failures: in a row;
-- in_flight: requests under way that this one worker has sent there under a policy.

local choose = require("signalbox.choose")
local outliers = require("signalbox.outliers")
local in_flight = require("signalbox.in_flight")
local json = require("signalbox.json")
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
        json.string(address), json.string(choose.log_key_of(route, address)), rules and rules.weights[address] or 1,
        state_of(rules, address, till), till, times, failures, in_flight.of(address))
end

function _M.host(host, name, route)
    local plain = record.is_plain(route)
    local rules = not plain and route.rules or nil
    local list, from = plain and route or route.addresses, plain and record.FIRST or 1
    local parts = {}
    for i = from, #list do
        parts[#parts + 1] = instance(route, rules, list[i])
    end
    return format('{"host":%s,"matched":%s,"plain":%s,"algorithm":"%s","fail_open":%s,"worker":%d,"instances":[%s]}',
        json.string(host), json.string(name), plain and "true" or "false", rules and rules.algorithm or "round_robin",
        not plain and route.fail_open and "true" or "false", ngx.worker.id() or -1, concat(parts, ","))
end

return _M
