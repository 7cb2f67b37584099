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

local address = require("signalbox.address")
local answer = require("signalbox.answer")
local bounded = require("signalbox.bounded")
local choose = require("signalbox.choose")
local clock = require("signalbox.clock")
local crypto = require("signalbox.crypto")
local record = require("signalbox.record")
local resolve = require("signalbox.resolve")
local secret = require("signalbox.secret")

local var, req, tcp = ngx.var, ngx.req, ngx.socket.tcp
local concat, find, gmatch, lower = table.concat, string.find, string.gmatch, string.lower
local match, sub = string.match, string.sub
local min, now, pairs, tonumber, type = math.min, clock.now, pairs, tonumber, type
local log, WARN = ngx.log, ngx.WARN

local _M = {}

local MAX_HEAD, MAX_BODY, PIECE = 32 * 1024, 64 * 1024, 16 * 1024
local MAX_TRIES = 2
local KEEP_IDLE_MS, MAX_IDLE = 4000, 32

-- Headers of a rejection that are sent to the client.
local PASSED = { location = "Location", ["www-authenticate"] = "WWW-Authenticate", ["content-type"] = "Content-Type",
    ["set-cookie"] = "Set-Cookie", ["cache-control"] = "Cache-Control" }

-- Digest of what the application received → { expiry, headers }.
local kept = bounded.new(4096)

-- ── one call ───────────────────────────────────────────────────────────────────────────────────────────────────────

local function connect(instance, timeout_ms)
    local socket = tcp()
    socket:settimeouts(timeout_ms, timeout_ms, timeout_ms)
    local ok, err = address.connect(socket, instance)
    return ok and socket, err
end

-- Reads more of the answer. The deadline applies to the whole call: an application that sends a byte now and then must
-- not delay the request without limit.
local function read_more(reader)
    local left_ms = (reader.deadline - now()) * 1000
    if left_ms < 1 then
        return nil, "timeout"
    end
    reader.socket:settimeout(left_ms)
    local piece, err = reader.socket:receiveany(PIECE)
    if not piece then
        return nil, err
    end
    reader.text = reader.text .. piece
    return true
end

local function read_head(reader)
    while true do
        local ends = find(reader.text, "\r\n\r\n", 1, true)
        if ends then
            local head = sub(reader.text, 1, ends + 1)
            reader.text = sub(reader.text, ends + 4)
            return head
        elseif #reader.text > MAX_HEAD then
            return nil, "the headers are too large"
        end
        local ok, err = read_more(reader)
        if not ok then
            return nil, err
        end
    end
end

local function headers_of(head)
    local headers = {}
    for line in gmatch(sub(head, find(head, "\n", 1, true) + 1), "[^\r\n]*\r\n") do
        local name, value = match(line, "^([^:%s]+):%s*(.-)%s*$")
        if not name then
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
    return headers
end

-- In HTTP/1.0 no body is chunked: it has a length, or ends with the connection. The second value is true if nothing
-- follows on the connection, or an error.
local function read_body(reader, status, headers)
    local length = headers["content-length"]
    if status == 204 or status == 304 then
        length = 0
    elseif length then
        length = tonumber(match(length, "^%d+$"))
        if not length or length > MAX_BODY then
            return nil, "the body is too large"
        end
    end
    while #reader.text < (length or MAX_BODY + 1) do
        local ok, err = read_more(reader)
        if not ok and err == "closed" and not length then
            return reader.text, false
        elseif not ok then
            return nil, err
        end
    end
    if not length then
        return nil, "the body is too large"
    end
    return sub(reader.text, 1, length), #reader.text == length
end

-- Returns { status, headers, body }, or nil and an error.
local function call(instance, request, timeout_ms)
    local socket, err = connect(instance, timeout_ms)
    if not socket then
        return nil, err
    end
    local ok, head, status, headers, body, complete
    ok, err = socket:send(request)
    local reader = { socket = socket, text = "", deadline = now() + timeout_ms / 1000 }
    if ok then
        head, err = read_head(reader)
    end
    status = head and tonumber(match(head, "^HTTP/1%.[01] (%d%d%d)[ \r]"))
    if status then
        headers, err = headers_of(head)
    end
    if headers then
        body, complete = read_body(reader, status, headers)
    end
    if not body then
        socket:close()
        return nil, complete or err or "no HTTP"
    end
    if complete and lower(headers.connection or "") == "keep-alive" then
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
        -- The instances of the service may be another edge, whose policy leads back to this one.
        "CDN-Loop: " .. (var.edge_passed or "") .. var.edge_loop_name,
    }
    local headers = req.get_headers(0)
    for i = 1, #rules.send do
        -- All lines with this name, because the instance receives all of them and may not read the first.
        local name = rules.send[i]
        local value = headers[name]
        if type(value) == "table" then
            value = concat(value, lower(name) == "cookie" and "; " or ", ")
        end
        if type(value) == "string" then
            lines[#lines + 1] = name .. ": " .. value
        end
    end
    lines[#lines + 1] = "\r\n"
    return concat(lines, "\r\n")
end

local function unavailable(reason, service)
    log(WARN, "forward authentication failed at ", service, ": ", reason)
    -- No operator has decided that, so it is logged as a failure and not as an answer of the edge.
    var.edge_declined = "failed"
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
    -- The headers are sent explicitly, because nginx handles some statuses, such as 444, itself.
    ngx.send_headers()
    ngx.print(result.body)
    return ngx.exit(200)
end

-- Answers a request that is not allowed. uri: the path and arguments of the request, as an instance reads them.
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
