-- The location @full: whatever the hot path leaves. A host the worker does not know yet, a host with a policy, a name
-- without instances, no name at all, and requests whose every instance has failed.

local answer = require("signalbox.answer")
local attempts = require("signalbox.attempts")
local balancer = require("ngx.balancer")
local follow = require("signalbox.follow")
local hostname = require("signalbox.hostname")
local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")
local routes = require("signalbox.routes")
local shared = require("signalbox.shared")

local log, ERR = ngx.log, ngx.ERR
local sleep = ngx.sleep

local _M = {}

local LOOKUP_TIMEOUT = 0.25
local TRUST_POLL = 0.005
local RETRY_AFTER = 1

-- A second try could do the work twice with any other method. TRACE and unknown ones are left out for caution.
local IDEMPOTENT = { GET = true, HEAD = true, PUT = true, DELETE = true, OPTIONS = true }

-- In the first moments of a worker, or while a replica copies its master, the answer is a few milliseconds away.
local function await_trust()
    local left = LOOKUP_TIMEOUT
    while not lookups.trusted and left > 0 and not link.down and not follow.state() do
        sleep(TRUST_POLL)
        left = left - TRUST_POLL
    end
    return lookups.trusted
end

-- The last level: what any worker of this router, or of its life before, has routed.
local function last_good(host)
    local value, name = shared.find(host)
    if value and not lookups.trusted then
        -- Kept, so that an outage costs this way once a host. When the table is trusted again it is asked again.
        routes.put(name, value)
    end
    return value, name
end

-- A record and the name that matched, false for no name, nil for unknown.
local function resolve(host)
    local exact = routes.known(host)
    if exact then
        return exact, host
    end
    local ask = {}
    local value, name, suspect_name = routes.find(host, ask)
    if value ~= nil then
        return value, name
    elseif suspect_name then
        -- Known from before a silence: served, and asked again by the way.
        lookups.ask(ask[1])
        return name, suspect_name
    end
    local kept, kept_name
    if not lookups.trusted then
        kept, kept_name = last_good(host)
        if kept then
            return kept, kept_name
        end
    end
    if await_trust() and lookups.wait(ask, LOOKUP_TIMEOUT) then
        -- Answers can be dropped again by a push before this request runs on; then the next round asks anew.
        value, name = routes.find(host, ask)
        if value == nil and lookups.wait(ask, LOOKUP_TIMEOUT) then
            value, name = routes.find(host, ask)
        end
        if value ~= nil then
            return value, name
        end
    end
    return last_good(host)
end

-- Addresses of either shape of record: list, first place, last place.
local function addresses_of(route)
    if record.is_plain(route) then
        return route, record.FIRST, #route
    end
    return route.usable, 1, #route.usable
end

local function log_key_of(route, address)
    if record.is_plain(route) then
        return route[record.LOG_KEY]
    end
    return route.log_keys[address] or route.log_key
end

local function no_instance()
    return answer.problem(503, "no_instance", "This host is known, but no instance of it is in service.", RETRY_AFTER)
end

-- Nothing left to try: the answer says what became of the last try.
local function failed(status, connected)
    if status == "504" then
        return answer.problem(504, connected and "timeout" or "connect_timeout", connected
            and "The instance did not answer in time." or "No instance of this host accepted a connection in time.")
    end
    return answer.problem(502, connected and "connection_broken" or "connect_failed", connected
        and "The instance closed the connection before it had answered."
        or "No instance of this host accepts connections. Retry later, or look at the instances of the host.")
end

-- Whether a request that has been tried may go to one more instance, one that came in after the first try.
local function may_go_on(route, tried, last)
    local status, connected = attempts.last()
    local list, from, to = addresses_of(route)
    local _, exhausted = round_robin.after(list, from, to, last, tried)
    if exhausted or (connected and not IDEMPOTENT[ngx.req.get_method()]) then
        ngx.var.logkey = log_key_of(route, last)
        return failed(status, connected)
    end
end

function _M.access()
    local host = ngx.var.host
    local tried, last = attempts.addresses()
    if not tried then
        ngx.var.edge_declined = "1"
    end
    if host == "" then
        return answer.problem(400, "no_host", "The request has no Host header, so it cannot be routed.")
    elseif not hostname.valid(host) then
        return answer.problem(404, "no_route", "Nothing can be registered under this host name.")
    end
    local route, name = resolve(host)
    if route == nil then
        return answer.problem(503, "table_unreachable",
            "This host is not known here yet and the route table cannot be asked. Retry later.", RETRY_AFTER)
    elseif route == false then
        return answer.problem(404, "no_route", "No application is registered under this host name.")
    end
    local plain = record.is_plain(route)
    if not plain and #route.usable == 0 then
        ngx.var.logkey = route.log_key
        return no_instance()
    end
    if name ~= host then
        if plain then
            routes.wild:set(host, route)
        end
        shared.put_alias(host, name)
    end
    if tried then
        may_go_on(route, tried, last)
        ngx.ctx.tried = true
    end
    ngx.ctx.route = route
end

-- Another instance than those that failed, here or before @full.
local function another(route)
    local tried, last = attempts.addresses()
    local list, from, to = addresses_of(route)
    return (round_robin.after(list, from, to, last, tried or {}))
end

local function first(route)
    if record.is_plain(route) then
        return round_robin.pick(route)
    end
    local list = route.usable
    route.cursor = route.cursor % #list + 1
    return list[route.cursor]
end

function _M.balance()
    -- The record found in the access phase. The body may have been read since, and the record replaced; its instances
    -- were right when the request came.
    local ctx = ngx.ctx
    local route = ctx.route
    if not route then
        return ngx.exit(500)
    end
    local failed_before = balancer.get_last_failure()
    if not failed_before then
        local _, from, to = addresses_of(route)
        if to > from then
            balancer.set_more_tries(to - from + 1)
        end
    end
    local address = (failed_before or ctx.tried) and another(route) or first(route)
    local ok, err = balancer.set_current_peer(address)
    if not ok then
        log(ERR, "cannot use an instance: ", err)
        return ngx.exit(500)
    end
    ngx.var.logkey = log_key_of(route, address)
end

return _M
