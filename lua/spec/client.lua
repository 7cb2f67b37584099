-- An HTTP/1.1 client for one request on a new connection, to one of the unix sockets of nginx.conf.

local _M = {}

local prefix = ngx.config.prefix()

local function dechunk(text)
    local parts, at = {}, 1
    while true do
        local from, to, size = text:find("^(%x+)[^\r\n]*\r\n", at)
        assert(from, "chunked body without a size at " .. at)
        size = tonumber(size, 16)
        if size == 0 then
            return table.concat(parts)
        end
        parts[#parts + 1] = text:sub(to + 1, to + size)
        at = to + size + 3
    end
end

local function parse(text)
    local head, body = text:match("^(.-\r\n)\r\n(.*)$")
    assert(head, "no complete answer: " .. text)
    local headers = {}
    for name, value in head:gmatch("([^\r\n:]+): *([^\r\n]*)\r\n") do
        headers[name:lower()] = value
    end
    if headers["transfer-encoding"] == "chunked" then
        body = dechunk(body)
    end
    return { status = tonumber(head:match("^HTTP/1%.1 (%d+)")), headers = headers, body = body }
end

-- options: { socket = "edge", method = "GET", path = "/", host = …, headers = { name = value }, body = … }. A host of
-- false sends HTTP/1.0 without one. tls: the server name of a handshake. connection: in place of `close`, together with
-- which the server must close the connection. Returns the answer as text.
function _M.raw(options)
    local socket = ngx.socket.tcp()
    socket:settimeouts(2000, 2000, 10000)
    assert(socket:connect("unix:" .. prefix .. (options.socket or "edge") .. ".sock"))
    if options.tls then
        assert(socket:sslhandshake(nil, options.tls, options.verify ~= false))
    end
    local host = options.host == nil and "app.test" or options.host
    local lines = { (options.method or "GET") .. " " .. (options.path or "/") .. (host and " HTTP/1.1" or " HTTP/1.0"),
        "Connection: " .. (options.connection or "close") }
    lines[#lines + 1] = host and "Host: " .. host or nil
    for name, value in pairs(options.headers or {}) do
        lines[#lines + 1] = name .. ": " .. value
    end
    if options.body then
        lines[#lines + 1] = "Content-Length: " .. #options.body
    end
    assert(socket:send(table.concat(lines, "\r\n") .. "\r\n\r\n" .. (options.body or "")))
    local text = assert(socket:receive("*a"))
    socket:close()
    return text
end

-- The same. Returns { status, headers, body }.
function _M.request(options)
    return parse(_M.raw(options))
end

return _M
