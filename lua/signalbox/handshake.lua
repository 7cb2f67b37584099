-- Checks at the start whether Lua can wait (yield) in nginx's certificate callback, where certificates are looked up.
-- If it cannot, the first handshake of each name fails, and nginx logs nothing. Waiting needs OpenResty's patch
-- `ssl_cert_cb_yield`, which Debian's nginx contains and nginx's own packages do not. No build option shows whether the
-- patch is present, so one worker makes a handshake with its own listener.

local log, ERR = ngx.log, ngx.ERR
local match, sub = string.match, string.sub

local _M = {}

-- The callback only waits for this name (certificates.lua). RFC 2606 reserves its domain.
_M.NAME = "handshake-check.signalbox.invalid"

function _M.wait()
    ngx.sleep(0.001)
end

local TIMEOUT_MS = 5000

-- The address at which a listener of this machine can be reached: host and port, or a socket's path.
local function target(listen)
    local address = match(listen, "^%S+")
    if sub(address, 1, 5) == "unix:" then
        return address
    end
    local host, port = match(address, "^(.*):(%d+)$")
    if not host then
        host, port = "*", address
    end
    if host == "0.0.0.0" or host == "*" then
        host = "127.0.0.1"
    elseif host == "[::]" then
        host = "[::1]"
    end
    return host, tonumber(port)
end
_M.target = target

-- Makes the handshake with the listener `listen` (the words that follow `listen` in nginx.conf). Returns true, or nil
-- and the reason. The third value is true if the listener did not even accept a connection.
function _M.try(listen)
    local socket = ngx.socket.tcp()
    socket:settimeouts(TIMEOUT_MS, TIMEOUT_MS, TIMEOUT_MS)
    local ok, err = socket:connect(target(listen))
    if not ok then
        return nil, err, true
    end
    if match(listen, "%sproxy_protocol%f[%s%z]") then
        ok, err = socket:send("PROXY UNKNOWN\r\n")
    end
    if ok then
        ok, err = socket:sslhandshake(false, _M.NAME, false)
    end
    socket:close()
    if not ok then
        return nil, err
    end
    return true
end

-- Called by a timer of one worker.
function _M.check(premature, listen)
    if premature then
        return
    end
    local ok, err, unreachable = _M.try(listen)
    if ok then
        return
    end
    if unreachable then
        log(ngx.WARN, "cannot check the handshake at ", listen, ": ", err)
        return
    end
    log(ERR, "this nginx cannot wait in a certificate callback (", err, "): the first TLS handshake of each name ",
        "fails. Use Debian's nginx or OpenResty, or build nginx with OpenResty's patch ssl_cert_cb_yield")
end

return _M
