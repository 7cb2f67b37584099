-- The guards of a host's policy, checked once for each request, before an instance is chosen. A request that must not
-- pass is answered here, and the statistics count it for the host.

local access = require("signalbox.access")
local answer = require("signalbox.answer")
local counters = require("signalbox.counters")
local crypto = require("signalbox.crypto")
local limits = require("signalbox.limits")
local secret = require("signalbox.secret")
local target = require("signalbox.target")

local var, req = ngx.var, ngx.req
local find, tonumber = string.find, tonumber

local _M = {}

-- Certificate authorities use this path over plain HTTP, regardless of the policy (RFC 8555, 8.3). It is matched
-- against the request line that the instance receives: only some servers read "/admin/../.well-known/acme-challenge/x"
-- as this path.
local ACME = "^/%.well%-known/acme%-challenge/[%w_-]+$"

-- The port of the HTTPS listener as clients see it; set at start.
_M.https_port = "443"

local function https(rules)
    if var.edge_scheme == "https" then
        return
    elseif rules.https == "only" then
        return answer.problem(403, "https_only", "This host answers over HTTPS only.")
    end
    local port = _M.https_port ~= "443" and ":" .. _M.https_port or ""
    local method = req.get_method()
    -- After a 301, old clients may repeat a POST as a GET.
    local status = (method == "GET" or method == "HEAD") and 301 or 308
    return ngx.redirect("https://" .. var.host .. port .. var.request_uri, status)
end

local function redirect(to)
    return ngx.redirect(to.keep_path and to.to .. var.request_uri or to.to, to.status)
end

local function maintenance(rules)
    local given = rules.maintenance
    if given.except then
        local value = var[given.except]
        if value and (not given.except_value or crypto.same(secret.of("maintenance"), value, given.except_value)) then
            return
        end
    end
    if not given.body or answer.is_grpc() then
        return answer.problem(given.status, "maintenance", "This host is under maintenance. Try again later.",
            given.retry_after)
    end
    ngx.status = given.status
    ngx.header["Content-Type"] = given.content_type
    ngx.header["Content-Length"] = #given.body
    ngx.header["Retry-After"] = given.retry_after
    ngx.header["X-Signalbox-Error"] = "maintenance"
    ngx.print(given.body)
    return ngx.exit(given.status)
end

local function method(rules)
    if not rules.methods[req.get_method()] then
        ngx.header["Allow"] = rules.allow
        return answer.problem(405, "method_not_allowed", "This host does not accept the method.")
    end
end

local function body(rules)
    local length = tonumber(var.content_length)
    local undeclared = not length and (var.http_transfer_encoding or req.http_version() == 2)
    -- The end of a gRPC call may never come, and nothing limits its size. The API rejects the combination, but a rule
    -- for a path can lead here, and tables can be written by hand.
    if undeclared and var.edge_way ~= "grpc" then
        -- The client did not declare the length.
        req.read_body()
        length = tonumber(var.content_length)
    end
    if length and length > rules.body_bytes then
        return answer.problem(413, "body_too_large", "The request body is larger than this host accepts.")
    end
end

local function limited(name, rules)
    if rules.rate then
        local wait = limits.request(name, rules)
        if wait then
            counters.add("limited")
            return answer.problem(429, "too_many_requests", "This client exceeds the request rate of this host.", wait)
        end
    end
    if rules.max_connections then
        local claim = limits.claim(name, rules)
        if not claim then
            counters.add("limited")
            return answer.problem(429, "too_many_connections",
                "This client has more requests in flight than this host allows.", 1)
        end
        var.edge_claim = claim
    end
end

-- The instance that the request's ticket names, or nil.
local function targeted(route)
    local ticket = var.http_x_signalbox_target
    if not ticket then
        return nil
    end
    req.clear_header("X-Signalbox-Target")
    local address = target.read(ticket, var.host, ngx.time())
    if not address then
        return answer.problem(403, "bad_ticket",
            "The ticket in X-Signalbox-Target is invalid for this host, or has expired.")
    end
    for i = 1, #route.addresses do
        if route.addresses[i] == address then
            return address
        end
    end
    return answer.problem(503, "target_gone", "The instance that the ticket names does not serve this host.")
end

-- Answers a request that is not allowed by the rules of the requested host. Otherwise returns the instance of its
-- ticket, or nil. serving: the record whose instances serve the path. rule: the rule for the path, or nil. uri: path
-- and arguments as the instance reads them.
function _M.check(route, serving, rule, uri)
    local rules = route.rules
    local admits = rule and rule.access or rules.access
    var.logkey = route.log_key
    if admits then
        access.check_address(admits)
    end
    if not find(var.request_uri, ACME) then
        if rules.https then
            https(rules)
        end
        local to = rule and rule.redirect or rules.redirect
        if to then
            redirect(to)
        end
        if rules.maintenance then
            maintenance(rules)
        end
    end
    if rules.methods then
        method(rules)
    end
    limited(route.name, rules)
    if admits then
        access.check_client(admits, uri)
    end
    if rules.body_bytes then
        body(rules)
    end
    if rules.request_headers then
        for i = 1, #rules.request_headers do
            local change = rules.request_headers[i]
            if change[2] then
                req.set_header(change[1], change[2])
            else
                req.clear_header(change[1])
            end
        end
    end
    return rules.target_header and targeted(serving) or nil
end

-- Log phase: releases the claim of a connection limit.
function _M.finish()
    local claim = var.edge_claim
    if claim ~= "" then
        var.edge_claim = ""
        limits.release(claim)
    end
end

-- Header phase: changes the headers of an instance's answer.
function _M.response(rules)
    local list = rules.response_headers
    for i = 1, list and #list or 0 do
        ngx.header[list[i][1]] = list[i][2] or nil
    end
end

return _M
