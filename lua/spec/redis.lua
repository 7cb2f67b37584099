-- A real redis-server for a spec, on a unix socket in the spec's folder. lua/spec/run stops it.

local resp = require("signalbox.resp")
local runner = require("runner")

local _M = {}

local prefix = ngx.config.prefix()
_M.address = "unix:" .. prefix .. "redis.sock"

local socket, reader

local function connect()
    socket = ngx.socket.tcp()
    socket:settimeouts(1000, 1000, 5000)
    local ok, err = socket:connect(_M.address)
    if not ok then
        return nil, err
    end
    reader = resp.reader(function()
        return socket:receiveany(65536)
    end)
    return true
end

function _M.send(...)
    assert(socket:send(resp.command(...)))
end

-- The last of the next `count` replies; an error reply is returned as text.
function _M.receive(count)
    local value, kind
    for _ = 1, count do
        value, kind = reader:next()
        assert(value ~= nil, kind)
    end
    return value
end

-- Sends a command and returns its reply.
function _M.call(...)
    _M.send(...)
    return _M.receive(1)
end

-- nginx itself logs each failed attempt to connect to a unix socket.
runner.allow_error("redis.sock failed (")

-- options: of the command line, or nil.
function _M.start(options)
    os.execute(("redis-server --port 0 --unixsocket %sredis.sock --pidfile %sredis.pid --daemonize yes --save '' "
        .. "--appendonly no --dir %s --logfile %sredis.log %s"):format(prefix, prefix, prefix, prefix, options or ""))
    runner.eventually("redis-server to answer", function()
        local ok, err = connect()
        local answer = ok and _M.call("PING")
        return answer == "PONG", err or answer
    end)
end

-- Kills the server. How nginx sees the end of its connections depends on what they are doing.
function _M.crash()
    runner.allow_error("recv() failed (104: ")
    runner.allow_error("send() failed (32: ")
    os.execute(("kill -9 $(cat %sredis.pid)"):format(prefix))
end

-- Writes the table's entry of a name, and counts up the serial, as the pacemaker does.
function _M.put(name, addresses, log_key, policy)
    _M.call("MULTI")
    _M.call("DEL", "instances:" .. name, "logkey:" .. name, "policy:" .. name)
    if #addresses > 0 then
        _M.call("SADD", "instances:" .. name, unpack(addresses))
    end
    if log_key then
        _M.call("SET", "logkey:" .. name, log_key)
    end
    if policy then
        _M.call("SET", "policy:" .. name, policy)
    end
    _M.call("INCR", "serial")
    _M.call("EXEC")
end

return _M
