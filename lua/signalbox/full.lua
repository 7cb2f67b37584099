-- The location @full: whatever the hot path leaves. A host the worker does not know yet, a host with a policy, a name
-- without instances, no name at all, and requests whose every instance has failed.
--
--   access ─▶ balance (each try) ─▶ log
--      └── every try failed ─▶ @again: access once more, for instances that came in meanwhile or may be waited for
--
-- What nginx forgets on the way from one location to another (ngx.ctx) and is needed until the end stands in variables:
-- $edge_counted is the address that in_flight.lua has counted for this request, $edge_claim what limits.lua has, and
-- $edge_target is 1 when the request is for one instance only.

local answer = require("signalbox.answer")
local attempts = require("signalbox.attempts")
local balancer = require("ngx.balancer")
local choose = require("signalbox.choose")
local outliers = require("signalbox.outliers")
local counters = require("signalbox.counters")
local held = require("signalbox.held")
local hostname = require("signalbox.hostname")
local in_flight = require("signalbox.in_flight")
local guards = require("signalbox.guards")
local record = require("signalbox.record")
local resolve = require("signalbox.resolve")
local routes = require("signalbox.routes")
local resp = require("ngx.resp")
local shared = require("signalbox.shared")
local sticky = require("signalbox.balance.sticky")
local tries = require("signalbox.tries")

local log, ERR = ngx.log, ngx.ERR
local now, update_time = ngx.now, ngx.update_time
local tcp = ngx.socket.tcp
local match, sub, tonumber = string.match, string.sub, tonumber

local _M = {}

local RETRY_AFTER = 1
-- How often a request that waits for its only instance looks whether it listens again, seconds.
local KNOCK_EVERY = 0.2
local KNOCK_TIMEOUT_MS = 200

-- A second try could do the work twice with any other method. TRACE and unknown ones are left out for caution.
local IDEMPOTENT = { GET = true, HEAD = true, PUT = true, DELETE = true, OPTIONS = true }
-- Of an instance, or of nginx for one.
local FAILURE = { ["502"] = true, ["503"] = true, ["504"] = true }

local function rules_of(route)
    return not record.is_plain(route) and route.rules or nil
end

-- The request is no longer under way at the instance it was counted for.
local function uncount()
    local address = ngx.var.edge_counted
    if address ~= "" then
        in_flight.finish(address)
        ngx.var.edge_counted = ""
        return address
    end
end

local function count_for(address)
    uncount()
    in_flight.begin(address)
    ngx.var.edge_counted = address
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

-- ── waiting for an instance ────────────────────────────────────────────────────────────────────────────────────────

-- Whether somebody listens at `address`.
local function listens(address)
    local socket = tcp()
    socket:settimeouts(KNOCK_TIMEOUT_MS, KNOCK_TIMEOUT_MS, KNOCK_TIMEOUT_MS)
    local ok
    if sub(address, 1, 5) == "unix:" then
        ok = socket:connect(address)
    else
        local host, port = match(address, "^(.+):(%d+)$")
        ok = socket:connect(host, tonumber(port))
    end
    if ok then
        socket:close()
    end
    return ok
end

-- Holds the request until its host has an instance, at most hold_ms after it came. down: an address that has just
-- refused, which may listen again without any change of the table. The record then, or nil.
local function hold(route, name, down)
    local rules = rules_of(route)
    if not rules or not rules.hold_ms then
        return nil
    end
    local host, deadline = ngx.var.host, ngx.req.start_time() + rules.hold_ms / 1000
    counters.add("held")
    while true do
        update_time()
        local left = deadline - now()
        if left <= 0 or not held.wait(name, down and left > KNOCK_EVERY and KNOCK_EVERY or left) then
            return nil
        end
        local present = resolve.host(host)
        if not present then
            return nil
        elseif present ~= route and choose.instances(present) > 0 then
            return present
        elseif down and present == route and listens(down) then
            return route
        end
        route = present
    end
end

-- ── phases ─────────────────────────────────────────────────────────────────────────────────────────────────────────

-- A request that has been tried: whether, and with which record, it may go to one more instance. Answers otherwise.
local function go_on(route, name, tried, last, count)
    local status, connected = attempts.last()
    if ngx.var.edge_target == "1" then
        return failed(status, connected)
    end
    if FAILURE[status or ""] then
        outliers.failed(route, last, status)
    end
    ngx.var.logkey = choose.log_key_of(route, last)
    ngx.ctx.free = not connected
    -- What was not connected has sent nothing and burdened nobody: any method, and no budget.
    if connected and not (IDEMPOTENT[ngx.req.get_method()] and tries.in_budget(route)) then
        return failed(status, connected)
    end
    local _, exhausted = choose.another(route, tried, last)
    if not exhausted and count < tries.most(route) and not tries.time_is_over(route) then
        return route
    end
    local present = not connected and hold(route, name, exhausted and choose.instances(route) == 1 and last)
    if not present then
        return failed(status, connected)
    end
    -- Another set of instances, or one that listens again: what was tried before says nothing of it.
    ngx.ctx.anew = true
    return present
end

local function find_route(host)
    if host == "" then
        return answer.problem(400, "no_host", "The request has no Host header, so it cannot be routed.")
    elseif not hostname.valid(host) then
        return answer.problem(404, "no_route", "Nothing can be registered under this host name.")
    end
    local route, name = resolve.host(host)
    if route == nil then
        return answer.problem(503, "table_unreachable",
            "This host is not known here yet and the route table cannot be asked. Retry later.", RETRY_AFTER)
    elseif route == false then
        return answer.problem(404, "no_route", "No application is registered under this host name.")
    end
    if name ~= host then
        if record.is_plain(route) then
            routes.wild:set(host, route)
        end
        shared.put_alias(host, name)
    end
    return route, name
end

-- Sends the request on to the location that speaks what the host's instances speak.
local function go_the_right_way(route, host)
    local rules, way = rules_of(route), ngx.var.edge_way
    if not rules then
        return
    end
    local right = way
    if rules.tls then
        right = rules.verify and "tls" or "tls_unverified"
        ngx.var.edge_tls_name = rules.server_name or host
    elseif rules.grpc then
        right = "grpc"
    end
    if right ~= way then
        return ngx.exec("@" .. right)
    end
end

function _M.access()
    local host = ngx.var.host
    local tried, last, count = attempts.addresses()
    if not tried and ngx.var.upstream_status then
        ngx.var.edge_declined = "1"
    end
    if tried then
        uncount()
    end
    local ctx = ngx.ctx
    local route, name = find_route(host)
    go_the_right_way(route, host)
    if not tried and not record.is_plain(route) and route.rules.guarded then
        ctx.target = guards.check(route)
    end
    if ctx.target then
        ctx.route, ngx.var.edge_target = route, "1"
        return
    end
    if choose.instances(route) == 0 and not choose.has_session(route) then
        ngx.var.logkey = route.log_key
        route = hold(route, name)
        if not route then
            return no_instance()
        end
    end
    if tried then
        route = go_on(route, name, tried, last, count)
        ctx.tried, ctx.tries = not ctx.anew, ctx.anew and 0 or count
    end
    ctx.route = route
end

-- All tries of one location failed. What is tried here is the last chance, whatever location it leads to.
function _M.again()
    if ngx.var.edge_second ~= "" then
        uncount()
        return failed(attempts.last())
    end
    ngx.var.edge_second = "1"
    return _M.access()
end

function _M.balance()
    -- The record found in the access phase. The body may have been read since, and the record replaced; its instances
    -- were right when the request came.
    local ctx = ngx.ctx
    local route = ctx.route
    if not route then
        return ngx.exit(ngx.ERROR)
    end
    local failure, failure_status = balancer.get_last_failure()
    local is_retry = failure ~= nil
    local address
    local free = ctx.free
    if ctx.target then
        -- That one or none; it is asked again when nginx met a connection that was closed.
        address = ctx.target
    elseif is_retry then
        local last = ngx.var.edge_counted
        outliers.failed(route, last, failure_status)
        free = not attempts.was_connected()
        if not free then
            tries.spend(route)
        end
        counters.add("retries")
        address = choose.another(route, attempts.addresses())
    elseif ctx.tried then
        counters.add("retries")
        address = choose.another(route, attempts.addresses())
    else
        address = choose.first(route)
    end
    ctx.tries = (ctx.tries or 0) + 1
    if not ctx.target and tries.another(route, ctx.tries, free) then
        balancer.set_more_tries(is_retry and 1 or 2)
    end
    local rules = rules_of(route)
    if rules and rules.timeouts then
        balancer.set_timeouts(rules.connect_timeout, rules.send_timeout, rules.read_timeout)
    end
    local ok, err = balancer.set_current_peer(address)
    if not ok then
        log(ERR, "cannot use an instance: ", err)
        return ngx.exit(ngx.ERROR)
    end
    count_for(address)
    ngx.var.logkey = choose.log_key_of(route, address)
end

-- A sticky client whose instance is gone, or that had none, gets a new cookie.
function _M.header()
    local route = ngx.ctx.route
    local rules = route and rules_of(route)
    if rules and rules.response_headers then
        guards.response(rules)
    end
    if rules and rules.sticky and not ngx.ctx.target then
        local address = ngx.var.edge_counted
        if address ~= "" and ngx.var[rules.sticky_variable] ~= sticky.value(route, address) then
            resp.add_header("Set-Cookie", sticky.cookie(route, address, ngx.var.scheme == "https"))
        end
    end
end

function _M.log()
    guards.finish()
    local address = uncount()
    if not address then
        return
    end
    local status = attempts.last()
    if FAILURE[status or ""] then
        local route = ngx.ctx.route or routes.known(ngx.var.host)
        if route then
            outliers.failed(route, address, status)
        end
    elseif status then
        outliers.worked(address)
    end
end

return _M
