-- The part of a policy that decides which requests pass, and with which headers.
--
--   {"limits":{"requests":{"per_second":100, "burst":50, "by":"address"|"host"|{"header":"X-Key","address":true}},
--              "connections":{"most":100, "by":…}},
--    "body_bytes":1048576, "methods":["GET","POST"],
--    "headers":{"request":{"set":{"X-Env":"live"}, "remove":["X-Debug"]}, "response":{…}},
--    "maintenance":{"status":503, "body":"…", "content_type":"text/plain", "retry_after":60,
--                   "except_header":{"name":"X-Preview", "value":"…"}},
--    "https":"redirect"|"only"|"any", "target_header":true,
--    "upstream":{"tls":true, "server_name":"app.internal", "verify":true, "protocol":"http"|"grpc"}}

local lower, upper, find, sort, concat = string.lower, string.upper, string.find, table.sort, table.concat
local pairs, type = pairs, type

local _M = {}

local MAX_BYTES = 2 ^ 50
local MAX_METHODS = 32

-- Headers of the connection or the framing (RFC 9110, 7.6.1), and those that the edge sets itself. A policy that could
-- set them could forge the client's identity, or split a message in two.
local RESERVED = {
    host = true, connection = true, ["content-length"] = true, ["transfer-encoding"] = true, te = true,
    trailer = true, upgrade = true, ["keep-alive"] = true, ["proxy-connection"] = true, expect = true,
    ["proxy-authenticate"] = true, ["proxy-authorization"] = true, ["x-request-id"] = true, ["x-real-ip"] = true,
    ["x-forwarded-for"] = true, ["x-forwarded-host"] = true, ["x-forwarded-port"] = true,
    ["x-forwarded-proto"] = true, ["cdn-loop"] = true, traceparent = true, tracestate = true,
    ["x-signalbox-error"] = true, ["x-signalbox-target"] = true,
}

local function header_name(value, where, take)
    local name = take.name(value, where)
    if name and RESERVED[lower(name)] then
        return take.refuse(where, "a header that a policy may change: " .. lower(name))
    end
    return name
end

-- { {name, value}, … }, where false removes the header; nil if nothing is changed.
local function changes(given, where, take)
    local list = {}
    for name, value in pairs(take.object(given.set, where .. ".set") or {}) do
        local good = type(name) == "string" and header_name(name, where .. ".set", take)
        local text = good and take.header_value(value, where .. ".set." .. name)
        if text then
            list[#list + 1] = { good, text }
        end
    end
    for _, name in pairs(take.object(given.remove, where .. ".remove") or {}) do
        local good = header_name(name, where .. ".remove", take)
        if good then
            list[#list + 1] = { good, false }
        end
    end
    return #list > 0 and list or nil
end

-- The scope of a limit's counters: false for the whole host, "address", or the variable of a header. The second value
-- is true when a value of the header is counted for each address separately.
local function counted_by(given, where, take)
    local by = given.by
    if by == "host" then
        return false
    elseif type(by) == "table" then
        return take.header_variable(take.name(by.header, where .. ".by.header")) or "address",
            take.boolean(by.address, where .. ".by.address")
    elseif by ~= nil and by ~= "address" then
        take.refuse(where .. ".by", "address, host or a header")
    end
    return "address"
end

local function limits(given, take, rules)
    local requests = take.object(given.requests, "limits.requests")
    local rate = requests and take.number(requests.per_second, "limits.requests.per_second", 0.001, 1e6)
    if rate then
        rules.rate = rate
        rules.rate_by, rules.rate_by_address = counted_by(requests, "limits.requests", take)
        -- The default is the number of requests in one second, because the requests of a page arrive together.
        rules.burst = take.number(requests.burst, "limits.requests.burst", 0, 1e6) or rate
    end
    local connections = take.object(given.connections, "limits.connections")
    local most = connections and take.integer(connections.most, "limits.connections.most", 1, 1e6)
    if most then
        rules.max_connections = most
        rules.connections_by, rules.connections_by_address = counted_by(connections, "limits.connections", take)
    end
end

local function methods(given, take, rules)
    local set, names = {}, {}
    for _, name in pairs(given) do
        if type(name) == "string" and find(name, "^%a[%a-]*$") and #names < MAX_METHODS then
            names[#names + 1] = upper(name)
            set[upper(name)] = true
        else
            take.refuse("methods", "an array of methods")
        end
    end
    if #names > 0 then
        if set.GET and not set.HEAD then
            -- HEAD is a GET without the body.
            names[#names + 1], set.HEAD = "HEAD", true
        end
        sort(names)
        rules.methods, rules.allow = set, concat(names, ", ")
    end
end

local function maintenance(given, take, rules)
    local except = take.object(given.except_header, "maintenance.except_header") or {}
    rules.maintenance = {
        status = take.integer(given.status, "maintenance.status", 200, 599) or 503,
        body = take.text(given.body, "maintenance.body"),
        content_type = given.content_type ~= nil
            and take.header_value(given.content_type, "maintenance.content_type") or "text/plain; charset=utf-8",
        retry_after = take.integer(given.retry_after, "maintenance.retry_after", 0, 86400 * 365),
        except = take.header_variable(take.name(except.name, "maintenance.except_header.name")),
        except_value = take.text(except.value, "maintenance.except_header.value"),
    }
end

local function upstream(given, take, rules)
    if given.protocol ~= nil and given.protocol ~= "http" and given.protocol ~= "grpc" then
        take.refuse("upstream.protocol", "http or grpc")
    end
    rules.grpc = given.protocol == "grpc"
    rules.tls = take.boolean(given.tls, "upstream.tls")
    -- Only an explicit false turns verification off.
    rules.verify = given.verify ~= false
    local name = take.text(given.server_name, "upstream.server_name")
    if name and find(name, "^[%w%.%-]+$") and #name <= 253 then
        rules.server_name = name
    elseif name then
        take.refuse("upstream.server_name", "a host name")
    end
end

function _M.read(given, take, rules)
    limits(take.object(given.limits, "limits") or {}, take, rules)
    rules.body_bytes = take.integer(given.body_bytes, "body_bytes", 0, MAX_BYTES)
    methods(take.object(given.methods, "methods") or {}, take, rules)
    local headers = take.object(given.headers, "headers") or {}
    rules.request_headers = changes(take.object(headers.request, "headers.request") or {}, "headers.request", take)
    rules.response_headers = changes(take.object(headers.response, "headers.response") or {}, "headers.response",
        take)
    local given_maintenance = take.object(given.maintenance, "maintenance")
    if given_maintenance then
        maintenance(given_maintenance, take, rules)
    end
    if given.https == "redirect" or given.https == "only" then
        rules.https = given.https
    elseif given.https ~= nil and given.https ~= "any" then
        take.refuse("https", "redirect, only or any")
    end
    upstream(take.object(given.upstream, "upstream") or {}, take, rules)
    rules.target_header = take.boolean(given.target_header, "target_header")
    -- One check per request instead of one per rule.
    rules.guarded = (rules.rate or rules.max_connections or rules.body_bytes or rules.methods or rules.request_headers
        or rules.maintenance or rules.https or rules.target_header) and true or false
end

return _M
