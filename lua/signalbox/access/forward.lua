-- Forward authentication: an application decides which requests may pass, for example one for single sign-on. It is
-- asked with a GET request that describes the client's request:
--
--   200 to 299   the request passes, with the headers that the policy lists
--   300 to 499   the client gets this answer: a redirect to the login, or a rejection
--   otherwise    503: without an answer, no request passes
--
-- The application is a host of the table ("service"), so it has instances, health checks and deployments as every
-- other, and no name has to be resolved here. Positive answers are kept for as long as the policy permits, for
-- requests that are equal in everything that the application received.

local answer = require("signalbox.answer")
local bounded = require("signalbox.bounded")
local choose = require("signalbox.choose")
local crypto = require("signalbox.crypto")
local record = require("signalbox.record")
local resolve = require("signalbox.resolve")
local secret = require("signalbox.secret")

local var, req, tcp = ngx.var, ngx.req, ngx.socket.tcp
local concat, lower, match, sub = table.concat, string.lower, string.match, string.sub
local min, now, pairs, tonumber = math.min, ngx.now, pairs, tonumber
local log, WARN = ngx.log, ngx.WARN

local _M = {}

local MAX_HEADERS, MAX_LINE, MAX_BODY = 100, 8192, 64 * 1024
local MAX_TRIES = 2
local KEEP_IDLE_MS, MAX_IDLE = 4000, 32

-- Headers of a rejection that the client gets.
local PASSED = { location = "Location", ["www-authenticate"] = "WWW-Authenticate", ["content-type"] = "Content-Type",
    ["set-cookie"] = "Set-Cookie", ["cache-control"] = "Cache-Control" }

-- Digest of what the application received → { until, headers }.
local kept = bounded.new(4096)

-- ── one call ───────────────────────────────────────────────────────────────────────────────────────────────────────

local function connect(address, timeout_ms)
    local socket = tcp()
    socket:settimeouts(timeout_ms, timeout_ms, timeout_ms)
    local ok, err
    if sub(address, 1, 5) == "unix:" then
        ok, err = socket:connect(address)
    else
        local host, port = match(address, "^(.+):(%d+)$")
        ok, err = socket:connect(host, tonumber(port))
    end
    return ok and socket, err
end

local function read_headers(socket)
    local headers = {}
    for _ = 1, MAX_HEADERS do
        local line, err = socket:receive("*l")
        if not line then
            return nil, err
        elseif line == "" then
            return headers
        end
        local name, value = match(line, "^([^:%s]+):%s*(.-)%s*$")
        if not name or #line > MAX_LINE then
            return nil, "invalid header"
        end
        name = lower(name)
        if name == "set-cookie" and headers[name] then
            local list = type(headers[name]) == "table" and headers[name] or { headers[name] }
            list[#list + 1] = value
            headers[name] = list
        else
            headers[name] = value
        end
    end
    return nil, "too many headers"
end

-- In HTTP/1.0 no body is chunked: it has a length, or ends with the connection.
local function read_body(socket, headers)
    local length = headers["content-length"]
    if not length then
        local body, err, partial = socket:receive(MAX_BODY)
        -- The end of the connection is the end of the body.
        return body or (err == "closed" and partial) or "", true
    end
    length = tonumber(length)
    if not length or length < 0 or length > MAX_BODY then
        return nil, "the body is too large"
    end
    return length == 0 and "" or socket:receive(length)
end

-- Returns { status, headers, body }, or nil and an error.
local function call(address, request, timeout_ms)
    local socket, err = connect(address, timeout_ms)
    if not socket then
        return nil, err
    end
    local ok, line, headers, body
    ok, err = socket:send(request)
    if ok then
        line, err = socket:receive("*l")
    end
    local status = tonumber(match(line or "", "^HTTP/1%.[01] (%d%d%d)"))
    if not status then
        socket:close()
        return nil, err or "no HTTP"
    end
    headers, err = read_headers(socket)
    if headers then
        body, err = read_body(socket, headers)
    end
    if not body then
        socket:close()
        return nil, err
    end
    if headers["content-length"] and lower(headers.connection or "") == "keep-alive" then
        socket:setkeepalive(KEEP_IDLE_MS, MAX_IDLE)
    else
        socket:close()
    end
    return { status = status, headers = headers, body = body }
end

-- ── the question ───────────────────────────────────────────────────────────────────────────────────────────────────

local function describe(rules, uri)
    local lines = {
        "GET " .. rules.path .. " HTTP/1.0",
        "Host: " .. rules.service,
        "Connection: keep-alive",
        "X-Forwarded-Method: " .. req.get_method(),
        "X-Forwarded-Proto: " .. var.edge_scheme,
        "X-Forwarded-Host: " .. var.edge_host,
        "X-Forwarded-Uri: " .. uri,
        "X-Forwarded-For: " .. var.remote_addr,
    }
    for i = 1, #rules.send do
        local value = var[rules.send[i].variable]
        if value then
            lines[#lines + 1] = rules.send[i].name .. ": " .. value
        end
    end
    lines[#lines + 1] = "\r\n"
    return concat(lines, "\r\n")
end

local function unavailable(reason, service)
    log(WARN, "forward authentication failed at ", service, ": ", reason)
    return answer.problem(503, "access_unavailable", "Access to this host cannot be checked at the moment.", 1)
end

local function ask(rules, request)
    local route = resolve.host(rules.service)
    local service_rules = route and record.rules(route)
    if not route or record.count(route) == 0 then
        return nil, "it has no instance"
    elseif service_rules and (service_rules.tls or service_rules.grpc) then
        return nil, "its instances do not speak plain HTTP"
    end
    local result, err
    local tried, last = {}, nil
    for attempt = 1, min(MAX_TRIES, record.count(route)) do
        last = attempt == 1 and choose.first(route) or choose.another(route, tried, last)
        if not last then
            break
        end
        tried[last] = true
        result, err = call(last, request, rules.timeout_ms)
        if result and result.status < 500 then
            return result
        end
        err = result and "status " .. result.status or err
    end
    return nil, err or "it has no instance"
end

-- Sets the listed headers. One that the application did not send is removed, so that no client can set it.
local function copy(rules, headers)
    for i = 1, #rules.copy do
        local name = rules.copy[i]
        local value = headers[lower(name)]
        if value then
            req.set_header(name, value)
        else
            req.clear_header(name)
        end
    end
end

local function reject(result)
    ngx.status = result.status
    for name, shown in pairs(PASSED) do
        ngx.header[shown] = result.headers[name]
    end
    ngx.header["X-Signalbox-Error"] = "access_denied"
    ngx.header["Content-Length"] = #result.body
    ngx.print(result.body)
    return ngx.exit(result.status)
end

-- Answers a request that may not pass. uri: the path and arguments of the request, as an instance reads them.
function _M.check(rules, uri)
    local request = describe(rules, uri)
    local key = rules.cache_seconds and crypto.hmac(secret.of("access"), rules.id .. "\0" .. request)
    local known = key and kept:get(key)
    if known and known[1] > now() then
        return copy(rules, known[2])
    end
    local result, err = ask(rules, request)
    if not result then
        return unavailable(err, rules.service)
    elseif result.status >= 300 then
        return reject(result)
    elseif result.status < 200 then
        return unavailable("status " .. result.status, rules.service)
    end
    if key then
        kept:set(key, { now() + rules.cache_seconds, result.headers })
    end
    return copy(rules, result.headers)
end

return _M
