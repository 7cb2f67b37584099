-- Decides which requests may use a host, or a path of it: by network, by password, or by asking an application. A
-- policy that cannot be read admits no client.

local answer = require("signalbox.answer")
local basic = require("signalbox.access.basic")
local forward = require("signalbox.access.forward")
local networks = require("signalbox.access.networks")

local var = ngx.var

local _M = {}

-- This is checked before everything else, so that a client outside of the networks learns nothing about the host.
function _M.check_address(rules)
    if rules.closed then
        return answer.problem(503, "access_unavailable", "Access to this host is not configured correctly.")
    end
    local address = var.binary_remote_addr
    if (rules.deny and networks.contain(rules.deny, address))
        or (rules.allow and not networks.contain(rules.allow, address))
    then
        return answer.problem(403, "address_not_allowed", "This host does not accept requests from this address.")
    end
end

-- uri: the path and arguments of the request, as an instance reads them.
function _M.check_client(rules, uri)
    if rules.basic then
        basic.check(rules.basic)
    elseif rules.forward then
        forward.check(rules.forward, uri)
    end
end

return _M
