-- The location @full routes every request that the hot path (balancer.lua) cannot route: for a host that the worker
-- does not know yet, for a host without instances or with a policy that the hot path does not support, without a host,
-- and after every instance has failed.
--
--   access ─▶ balance (each try) ─▶ log
--      └── every try failed ─▶ @again: access once more, because an instance may have been added, or hold_ms lets the
--                              request wait for one
--
-- nginx drops ngx.ctx between locations, so values that are needed until the end are in variables: $edge_counted is the
-- address for which in_flight.lua counts this request, $edge_claim is the claim of limits.lua for it, $edge_target is 1
-- if the request is for one instance only, and $edge_service is the host that its path leads to, or "-" for its own
-- host.

local answer = require("signalbox.answer")
local attempts = require("signalbox.attempts")
local balancer = require("ngx.balancer")
local base = require("resty.core.base")
local choose = require("signalbox.choose")
local clock = require("signalbox.clock")
local counters = require("signalbox.counters")
local guards = require("signalbox.guards")
local held = require("signalbox.held")
local hostname = require("signalbox.hostname")
local in_flight = require("signalbox.in_flight")
local outliers = require("signalbox.outliers")
local paths = require("signalbox.paths")
local probe = require("signalbox.probe")
local record = require("signalbox.record")
local resolve = require("signalbox.resolve")
local resp = require("ngx.resp")
local response = require("signalbox.response")
local routes = require("signalbox.routes")
local shared = require("signalbox.shared")
local sticky = require("signalbox.balance.sticky")
local tries = require("signalbox.tries")
local usual = require("signalbox.usual")

local log, ERR = ngx.log, ngx.ERR
local now = clock.now
local min = math.min
local byte, find, format, gmatch, match = string.byte, string.find, string.format, string.gmatch, string.match
local gsub, lower, sub = string.gsub, string.lower, string.sub
local get_request = base.get_request
local rules_of = record.rules

local _M = {}

-- Name → the number of requests of this worker that wait until the host is no longer paused.
local paused = {}

local RETRY_AFTER_SECONDS = 1
local SLASH = byte("/")
-- What a browser accepts that wants a stream of events, which is never buffered.
local EVENTS = "text/event-stream"
local NO_CONTENT = 204
-- nginx's status for the log.
local CLIENT_CLOSED_REQUEST = 499

-- Statuses of an instance, or of nginx on its behalf, that are failures of the instance.
local FAILURE = { ["502"] = true, ["503"] = true, ["504"] = true }

-- Stops counting this request for an instance, and returns the instance's address.
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
    return answer.problem(503, "no_instance", "This host is known, but none of its instances is in service.",
        RETRY_AFTER_SECONDS)
end

-- No try is left. The answer describes the last one.
local function failed(status, connected)
    if attempts.headers_too_large() then
        return answer.problem(502, "response_headers_too_large",
            "The headers of the instance's answer are larger than this edge accepts.")
    end
    if status == "504" then
        return answer.problem(504, connected and "timeout" or "connect_timeout", connected
            and "The instance did not answer in time." or "No instance of this host accepted a connection in time.")
    end
    return answer.problem(502, connected and "connection_broken" or "connect_failed", connected
        and "The instance closed the connection before it sent a complete answer."
        or "No instance of this host accepts connections. Retry later, or check the instances of the host.")
end

-- The host whose instances serve the request.
local function server_of_request()
    local service = ngx.var.edge_service
    return (service == "" or service == "-") and ngx.var.host or service
end

-- ── waiting for an instance ────────────────────────────────────────────────────────────────────────────────────────

-- The end of a wait that began with the request, by the clock.
local function deadline_after(ms)
    local passed = ngx.now() - ngx.req.start_time()
    return now() + ms / 1000 - (passed > 0 and passed or 0)
end

-- As held.wait. In the meantime the request belongs to the host in the log, because nginx may end it if its client
-- leaves. No instance receives the request of a client that has left, because it may already have repeated it.
local function wait(place, route, seconds)
    local before = ngx.var.logkey
    ngx.var.logkey = record.log_key(route)
    if not held.wait(place, seconds) then
        return ngx.exit(CLIENT_CLOSED_REQUEST)
    end
    ngx.var.logkey = before
end

-- Whether an instance other than `down` may get requests.
local function has_another(route, down)
    local list, from, to = record.candidates(route)
    return to > from or to == from and list[from] ~= down
end

local function await_instance(place, route, host, down, deadline)
    local seen = down and probe.successes(place.shared)
    while true do
        local left = deadline - now()
        if left <= 0 then
            return nil
        end
        wait(place, route, down and min(left, probe.INTERVAL_SECONDS) or left)
        local present = resolve.host(host)
        if not present then
            return nil
        elseif present ~= route and has_another(present, down) then
            return present
        end
        if record.count(present) == 0 then
            down = nil
        elseif down and probe.succeeds(place.shared, down, seen) then
            return present
        end
        route = present
    end
end

-- Holds the request until `host`, which `name` serves, has an instance, at most hold_ms from the beginning of the
-- request. down: an address that has just refused a connection, and may accept one again without a change of the table.
-- Returns the record, or nil.
local function hold(route, host, name, down)
    local rules = rules_of(route)
    local place = rules and rules.hold_ms and held.enter(name, host, down)
    if not place then
        return nil
    end
    counters.add("held")
    local found = await_instance(place, route, host, down, deadline_after(rules.hold_ms))
    held.leave(place)
    return found
end

-- ── phases ─────────────────────────────────────────────────────────────────────────────────────────────────────────

-- For a request that has failed at an instance: returns the record with which it may be tried at another. Otherwise
-- answers it.
local function continue(route, host, name, tried, last, count)
    local status, connected = attempts.last()
    if ngx.var.edge_target == "1" then
        return failed(status, connected)
    end
    local too_large = attempts.headers_too_large()
    if FAILURE[status or ""] and not too_large then
        outliers.failed(route, last, status)
    end
    ngx.var.logkey = record.log_key(route, last)
    ngx.ctx.free = not connected
    if too_large or connected and not tries.is_idempotent() then
        return failed(status, connected)
    end
    local _, exhausted = choose.another(route, tried, last)
    -- A try without a connection has sent nothing: any method may be repeated, and the budget is not used.
    if not exhausted and count < tries.max(route) and not tries.window_is_over(route)
        and (not connected or tries.spend(route))
    then
        return route
    end
    local present = not connected and hold(route, host, name, exhausted and record.count(route) == 1 and last)
    if not present then
        return failed(status, connected)
    end
    -- The instances have changed, or one accepts connections again, so the earlier tries are ignored.
    ngx.ctx.restarted = true
    return present
end

local function no_route()
    return answer.problem(404, "no_route", "No application is registered under this host name.")
end

-- The record that serves a host, and the name that matched. otherwise: answers the request if no name matches.
local function look_up(host, otherwise, ...)
    local route, name = resolve.host(host)
    if route == nil then
        return answer.problem(503, "table_unreachable",
            "This router has not cached this host yet and cannot read the route table. Retry later.",
            RETRY_AFTER_SECONDS)
    elseif route == false then
        return otherwise(...)
    end
    if name ~= host then
        routes.put_wild(host, route)
        shared.put_alias(host, name)
    end
    return route, name
end

local function find_route(host)
    if host == "" then
        return answer.problem(400, "no_host", "The request has no Host header, so it cannot be routed.")
    elseif not hostname.valid(host) then
        return answer.problem(404, "no_route",
            "This host name is not valid, so no application can be registered under it.")
    end
    return look_up(host, no_route)
end

-- Frees the place of a request that waits for a paused host. Also called in the log phase, because nginx ends a
-- waiting request whose client leaves.
local function finish_pause()
    local ctx = ngx.ctx
    local name = ctx.paused
    if name then
        ctx.paused = nil
        paused[name] = paused[name] > 1 and paused[name] - 1 or nil
    end
end

-- Holds a request until its host is no longer paused. Returns the current record and its name.
local function await_resume(route, host, name)
    local pause = rules_of(route).pause
    local deadline = deadline_after(pause.wait_ms)
    local count = paused[name] or 0
    local place = count < pause.most and held.enter(name, host)
    local is_paused = true
    if place then
        paused[name] = count + 1
        ngx.ctx.paused = name
        counters.add("held")
        local left = deadline - now()
        while is_paused and left > 0 do
            wait(place, route, left)
            local present = resolve.host(host)
            local present_rules = present and rules_of(present)
            is_paused = present_rules and present_rules.pause
            left = deadline - now()
        end
        finish_pause()
        held.leave(place)
    end
    if is_paused then
        ngx.var.logkey = record.log_key(route)
        return answer.problem(503, "paused", "This host is paused. Try again later.", RETRY_AFTER_SECONDS)
    end
    return find_route(host)
end

-- ── paths ──────────────────────────────────────────────────────────────────────────────────────────────────────────

local function escape_byte(char)
    return format("%%%02X", byte(char))
end

-- The rule for the path of a request to a host with rules for paths, and the path that its instance receives. Without a
-- second value, the path is sent unchanged.
local function rule_for_path(rules)
    local path = ngx.var.uri
    local matched = paths.matched(path)
    if not matched then
        return answer.problem(400, "ambiguous_path",
            "Applications read this path in different ways. Send it without backslashes, control characters, and "
                .. "parameters between dots or slashes.")
    end
    local rule = paths.find(rules.paths, matched)
    if rule and rule.strip then
        local rest = paths.stripped(rule, path)
        if not rest then
            return answer.problem(400, "ambiguous_path", "The prefix of this path has parameters.")
        end
        return rule, rest
    end
    local sent = ngx.var.request_uri
    if path ~= sent and path .. "?" ~= sub(sent, 1, #path + 1) then
        return rule, path
    end
    return rule
end

-- Path and arguments before a prefix is removed, as an instance reads them. path: as rule_for_path returns it.
local function sent_uri(rule, path)
    if not path then
        local sent = ngx.var.request_uri
        -- An absolute request line may have no path: `GET http://app.test?a=1`.
        return byte(sent) == SLASH and sent or "/" .. sent
    end
    local uri = rule and rule.strip and ngx.var.uri or path
    local args = ngx.var.args
    return gsub(uri, "[^%w%-._~!$&'()*+,;=:@/]", escape_byte) .. (args and "?" .. args or "")
end

-- Stores what the path leads to, so that all tries use it.
local function decide(rule, path)
    ngx.var.edge_service = rule and rule.service or "-"
    if path then
        -- Evaluated now, because later the path may have changed, and the log must contain that of the client.
        local _ = ngx.var.edge_log_uri
        ngx.req.set_uri(path)
        if rule and rule.strip and not rule.exact then
            ngx.var.edge_prefix = rule.path
        end
    end
end

-- Answers a request whose path leads to a host that does not exist. asked: the record of the requested host.
local function no_service(asked)
    ngx.var.logkey = record.log_key(asked)
    return no_instance()
end

-- Redirects the request to the location for the protocol of the host's instances. Only the policy decides this. If a
-- client could, it could make healthy instances fail with a protocol that they do not support.
local function switch_location(route, host)
    local rules, way = rules_of(route), ngx.var.edge_way
    local right = "full"
    if rules and rules.tls then
        right = rules.verify and "tls" or "tls_unverified"
        ngx.var.edge_tls_name = rules.server_name or host
    elseif rules and rules.grpc then
        right = "grpc"
    end
    if rules and rules.buffering and right ~= "grpc" and not find(ngx.var.http_accept or "", EVENTS, 1, true) then
        right = right .. "_buffered"
    end
    if right ~= way then
        return ngx.exec("@" .. right)
    end
end

-- Headers that a client cannot remove by naming them in Connection: framing, and those that the edge itself needs.
local KEPT = {
    host = true, connection = true, upgrade = true, te = true, ["content-length"] = true, ["content-type"] = true,
    ["transfer-encoding"] = true, ["cdn-loop"] = true,
}

-- Removes the headers of the client's connection (RFC 9110, 7.6.1). nginx itself knows only those of RFC 2616. Between
-- two commas is one name, or nothing that is one; $edge_unusual limits their number.
local function drop_named_headers()
    for name in gmatch(ngx.var.http_connection or "", "[^,]+") do
        name = match(name, "^%s*(%S+)%s*$")
        if name and not KEPT[lower(name)] then
            ngx.req.clear_header(name)
        end
    end
end

-- Answers in place of an instance whose answer cannot be forwarded, by $edge_unusual.
local UNREADABLE = {
    interim = { "interim_response", "The instance sent an interim response, such as 103 Early Hints, which this edge "
        .. "cannot forward, or switched protocols although the request did not ask for it." },
    not_http = { "not_http", "The instance did not answer in HTTP." },
}

-- Handles an unusual request, or an unusual answer of its instance (response.lua), as $edge_unusual describes it:
-- answers it, or removes headers. tried: whether an instance received the request before.
local function unusual(kind, tried)
    if kind == "interim" then
        uncount()
        return ngx.exec("@unreadable")
    elseif kind == "not_http" then
        uncount()
        local _, address = attempts.addresses()
        local route = resolve.host(server_of_request())
        if address and route then
            outliers.failed(route, address, "no HTTP")
        end
        return ngx.exec("@unreadable")
    elseif kind == "loop" then
        -- No cache may store it: a client could send the header through a cache that others use.
        ngx.header["Cache-Control"] = "no-store"
        return answer.problem(508, "loop_detected", "This request has passed through this edge before.")
    elseif kind == "many" then
        -- All headers are searched for each name, and both can be thousands.
        return answer.problem(400, "bad_request", "The header Connection names more than 32 headers.")
    elseif kind == "port" then
        return answer.problem(400, "bad_request", "The port in the Host header is not valid.")
    end
    if not tried then
        -- This is done once, because guards set headers afterwards.
        drop_named_headers()
    end
end

-- In a location that closes the client's connection.
function _M.unreadable()
    local given = UNREADABLE[ngx.var.edge_unusual]
    return answer.problem(502, given[1], given[2])
end

function _M.access()
    local kind = ngx.var.edge_unusual
    local tried, last, count = attempts.addresses()
    if kind ~= "" then
        unusual(kind, tried)
    end
    if not tried and ngx.var.upstream_status then
        ngx.var.edge_declined = "1"
    end
    if tried then
        uncount()
    end
    local ctx = ngx.ctx
    local host = ngx.var.host
    local route, name = find_route(host)
    ctx.asked = route
    if not tried and rules_of(route) and rules_of(route).pause then
        route, name = await_resume(route, host, name)
    end
    local asked, service, rule, path = route, ngx.var.edge_service, nil, nil
    local rules = rules_of(asked)
    if service == "" and rules and rules.paths then
        rule, path = rule_for_path(rules)
        service = rule and rule.service or ""
    end
    if service ~= "" and service ~= "-" then
        host = service
        route, name = look_up(service, no_service, asked)
    end
    switch_location(route, host)
    if not tried and rules and (rules.guarded or (rule and (rule.access or rule.redirect))) then
        ctx.target = guards.check(asked, route, rule, sent_uri(rule, path))
    end
    if rules and rules.paths and ngx.var.edge_service == "" then
        decide(rule, path)
        ctx.cookie_path = rule and rule.path
    end
    ctx.asked = asked
    if ctx.target then
        ctx.route, ngx.var.edge_target = route, "1"
        return
    end
    if record.count(route) == 0 and not choose.has_session(route) then
        ngx.var.logkey = record.log_key(route)
        route = hold(route, host, name)
        if not route then
            return no_instance()
        end
    end
    if tried then
        route = continue(route, host, name, tried, last, count)
        ctx.tried, ctx.tries = not ctx.restarted, ctx.restarted and 0 or count
    end
    ctx.route = route
end

-- All tries of one location failed. The tries that are made here are the last, whatever location they lead to.
function _M.again()
    if ngx.var.edge_second ~= "" then
        uncount()
        return failed(attempts.last())
    end
    ngx.var.edge_second = "1"
    return _M.access()
end

-- Returns the address for this try, and whether another try may follow.
local function next_try(ctx, route)
    if ctx.target then
        -- Only this instance may be used. It is tried again if nginx found its kept-alive connection closed.
        return ctx.target, false
    end
    local made = ctx.tries or 0
    ctx.tries = made + 1
    local failure, status = balancer.get_last_failure()
    if failure then
        return tries.retry(route, status, made)
    end
    local address
    if ctx.tried then
        counters.add("retries")
        address = choose.another(route, attempts.addresses())
    else
        address = choose.first(route)
    end
    return address, tries.another(route, made + 1, ctx.free)
end

function _M.balance()
    -- The record that the access phase found. It may have been replaced while the body was read, but it was valid when
    -- the request arrived.
    local ctx = ngx.ctx
    local route, request = ctx.route, get_request()
    local failure = balancer.get_last_failure()
    if not route or failure and (tries.is_over(request) or tries.window_is_over(route)) then
        return ngx.exit(ngx.ERROR)
    end
    local address, more = next_try(ctx, route)
    if more and tries.may_grant(request) then
        balancer.set_more_tries(failure and 1 or 2)
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
    ngx.var.logkey = record.log_key(route, address)
end

-- A sticky client without a session, or whose instance no longer exists, gets a new cookie.
function _M.header()
    if response.check() then
        return
    end
    local named = usual.named_by_answer(get_request())
    if named or ngx.status == NO_CONTENT then
        response.clean(ngx.status, named)
    end
    local ctx = ngx.ctx
    local route = ctx.route
    local asked_rules, rules = ctx.asked and rules_of(ctx.asked), route and rules_of(route)
    if asked_rules and asked_rules.response_headers then
        guards.response(asked_rules)
    end
    if rules and rules.sticky and not ctx.target then
        local address = ngx.var.edge_counted
        if address ~= "" and ngx.var[rules.sticky_variable] ~= sticky.value(route, address) then
            resp.add_header("Set-Cookie",
                sticky.cookie(route, address, ngx.var.edge_scheme == "https", ctx.cookie_path))
        end
    end
end

function _M.log()
    guards.finish()
    held.finish()
    finish_pause()
    local address = uncount()
    if not address then
        return
    end
    local status = attempts.last()
    if FAILURE[status or ""] then
        local route = ngx.ctx.route or routes.known(server_of_request())
        if route and not attempts.headers_too_large() then
            outliers.failed(route, address, status)
        end
    elseif status then
        outliers.worked(address)
    end
end

return _M
