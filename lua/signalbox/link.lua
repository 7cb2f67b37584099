-- The one connection of a worker to the routes replica. Pushes and replies share it, because the order between them is
-- what makes a cache correct: with lookups on a second connection, a reply from before a change can arrive after the
-- push that announced it, and the old value would stay for good.
--
--   a request ── send(command, handler, argument) ──▶ outbox ──▶ writer (pipelines) ──▶ Redis
--                        handler(value, kind, argument) ◀── reader (first in, first out) ◀──┘
--                                     owner.pushed(value) ◀──┘
--
-- Silence of a second: a PING. Three seconds without a byte: dead (a FLUSHALL of a million keys takes under one). When
-- the connection dies every waiting handler is called with nil, and a new one is made with growing pauses, for ever.

local resp = require("signalbox.resp")
local semaphore = require("ngx.semaphore")

local tcp, sleep, now, exiting = ngx.socket.tcp, ngx.sleep, ngx.now, ngx.worker.exiting
local spawn, kill, timer_at = ngx.thread.spawn, ngx.thread.kill, ngx.timer.at
local log, WARN, NOTICE, ERR = ngx.log, ngx.WARN, ngx.NOTICE, ngx.ERR
local match, sub = string.match, string.sub
local tonumber, pcall = tonumber, pcall

-- down: the last attempt failed, so there is no point in waiting for this one.
local _M = { connected = false, down = false }

local CONNECT_TIMEOUT_MS, SEND_TIMEOUT_MS = 1000, 1000
local QUIET_MS, DEAD_AFTER_QUIETS = 1000, 3
local RETRY_FIRST, RETRY_MAX = 0.02, 0.5
-- Frames handled before other work of the worker gets a turn: a million pushes in a row must not stall requests.
local BURST = 256
local READ_SIZE = 65536

local PING = resp.command("PING")
-- BCAST: Redis remembers nothing about what this worker has read, and tells it of every change under the prefixes.
-- It tells them in the order of the prefixes, and nothing tracked sorts after `serial`: see ack rounds in follow.lua.
local OPENING = resp.command("HELLO", "3") .. resp.command("CLIENT", "TRACKING", "ON", "BCAST",
    "PREFIX", "cert:", "PREFIX", "epoch", "PREFIX", "instances:", "PREFIX", "logkey:", "PREFIX", "policy:",
    "PREFIX", "serial")

-- Of the present connection.
local outbox, outbox_n
local handlers, arguments, first, last
local wake
local opening_error

local function reset()
    outbox, outbox_n = {}, 0
    handlers, arguments, first, last = {}, {}, 1, 0
    wake = semaphore.new()
    opening_error = nil
end
reset()

-- False when there is no connection; the handler is then never called.
function _M.send(command, handler, argument)
    if not _M.connected then
        return false
    end
    outbox_n = outbox_n + 1
    outbox[outbox_n] = command
    last = last + 1
    handlers[last] = handler
    arguments[last] = argument
    if wake:count() < 1 then
        wake:post(1)
    end
    return true
end

-- For a command that stands in the same text as the one sent before: its reply.
function _M.expect(handler, argument)
    last = last + 1
    handlers[last] = handler
    arguments[last] = argument
end

local function ignore() end

function _M.ping(handler)
    return _M.send(PING, handler or ignore)
end

local function opened(value, kind)
    if kind == "-" or kind == "!" or not value then
        opening_error = "Redis refused the connection: " .. (value or "closed")
    end
end

local function write_all(sock)
    while true do
        local ok, err = wake:wait(10)
        if not ok and err ~= "timeout" then
            return nil, err
        end
        if outbox_n > 0 then
            local batch = outbox
            outbox, outbox_n = {}, 0
            local sent, why = sock:send(batch)
            if not sent then
                -- The reader notices by itself, and it is the one that ends a connection.
                return nil, why
            end
        end
    end
end

-- Bytes for the reader. A read timeout is a question to Redis, never a lost half of a frame.
local function source_of(sock)
    local quiets = 0
    return function()
        while true do
            local bytes, err = sock:receiveany(READ_SIZE)
            if bytes then
                quiets = 0
                return bytes
            elseif err ~= "timeout" then
                return nil, err
            elseif exiting() then
                return nil, "the worker is exiting"
            end
            quiets = quiets + 1
            if quiets >= DEAD_AFTER_QUIETS then
                return nil, "no byte in " .. quiets .. " s"
            elseif quiets == 1 then
                _M.ping()
            end
        end
    end
end

local function read_all(sock, owner)
    local reader = resp.reader(source_of(sock))
    local handled = 0
    while true do
        local value, kind = reader:next()
        if value == nil then
            return kind
        end
        if kind == ">" then
            owner.pushed(value)
        else
            if first > last then
                return "protocol: a reply to nothing"
            end
            local handler, argument = handlers[first], arguments[first]
            handlers[first], arguments[first] = nil, nil
            first = first + 1
            handler(value, kind, argument)
            if opening_error then
                return opening_error
            end
        end
        handled = handled + 1
        if handled % BURST == 0 then
            sleep(0)
        end
    end
end

local function connect(address)
    local sock = tcp()
    sock:settimeouts(CONNECT_TIMEOUT_MS, SEND_TIMEOUT_MS, QUIET_MS)
    local ok, err
    if sub(address, 1, 5) == "unix:" then
        ok, err = sock:connect(address)
    else
        local host, port = match(address, "^(.+):(%d+)$")
        if not host then
            return nil, "the address of the replica is neither host:port nor unix:/path"
        end
        ok, err = sock:connect(host, tonumber(port))
    end
    if not ok then
        return nil, err
    end
    return sock
end

-- Why the connection ended, and whether there was one.
local function session(address, owner)
    local sock, err = connect(address)
    if not sock then
        _M.down = true
        return err, false
    end
    reset()
    _M.connected, _M.down = true, false
    _M.send(OPENING, opened)
    _M.expect(opened)
    owner.opened()
    local writer = spawn(write_all, sock)
    -- pcall, because a bug in a handler must cost this connection and not the worker's ear for good.
    local fine, reason = pcall(read_all, sock, owner)
    if not fine then
        log(ERR, "reading from the routes replica: ", reason)
    end
    _M.connected = false
    kill(writer)
    sock:close()
    local waiting, with, from, to = handlers, arguments, first, last
    reset()
    owner.lost()
    for i = from, to do
        waiting[i](nil, nil, with[i])
    end
    return reason, true
end

local function run(premature, address, owner)
    local pause, told = RETRY_FIRST, false
    while not (premature or exiting()) do
        local started = now()
        local reason, was_open = session(address, owner)
        ngx.update_time()
        if exiting() then
            return
        end
        if was_open or not told then
            log(WARN, was_open and "the routes replica is gone, routing goes on with what is known: "
                or "the routes replica cannot be reached, routing goes on with what is known: ", reason)
            told = true
        end
        -- A connection that lasted starts over with the short pause; one that Redis refuses at once does not.
        pause = now() - started > 1 and RETRY_FIRST or pause
        sleep(pause)
        pause = pause * 2 < RETRY_MAX and pause * 2 or RETRY_MAX
    end
end

-- owner: { opened = f(), pushed = f(value), lost = f() }.
function _M.start(address, owner)
    local ok, err = timer_at(0, run, address, owner)
    if not ok then
        log(ERR, "cannot start the link to the routes replica: ", err)
        return
    end
    log(NOTICE, "following the routes replica at ", address)
end

return _M
