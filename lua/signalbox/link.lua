-- The one connection of a worker to the routes replica. Pushes and replies share it, because a correct cache needs
-- their order: with lookups on a second connection, a reply from before a change could arrive after the push of that
-- change, and the worker would keep the old value.
--
--   a request ── send(command, handler, argument) ──▶ outbox ──▶ writer (pipelines) ──▶ Redis
--                        handler(value, kind, argument) ◀── reader (first in, first out) ◀──┘
--                                     owner.pushed(value) ◀──┘
--
-- It logs in before anything else. The password's file is read at each connect, so a password can be changed while
-- requests are served: the next connection uses the new one. The password never appears in a log or an error.
--
-- After two seconds of silence it sends a PING. After three seconds without a byte the connection is dead (a FLUSHALL
-- of a million keys takes less than one second). When it ends, every waiting handler is called with nil, and the link
-- reconnects with growing pauses, without limit. In an exiting worker it ends when no request waits (held.lua).

local address = require("signalbox.address")
local held = require("signalbox.held")
local resp = require("signalbox.resp")
local semaphore = require("ngx.semaphore")

local tcp, sleep, now, exiting = ngx.socket.tcp, ngx.sleep, ngx.now, ngx.worker.exiting
local spawn, kill, timer_at = ngx.thread.spawn, ngx.thread.kill, ngx.timer.at
local log, WARN, NOTICE, ERR = ngx.log, ngx.WARN, ngx.NOTICE, ngx.ERR
local find, match = string.find, string.match
local open = io.open
local pcall = pcall

-- connected: commands can be sent. ready: Redis has accepted the login. down: the last attempt to connect failed, so a
-- request should not wait for the next one. reason: why there is no connection, for operators.
local _M = { connected = false, ready = false, down = false, reason = nil }

local CONNECT_TIMEOUT_MS, SEND_TIMEOUT_MS = 1000, 1000
local QUIET_MS, PING_AFTER_QUIETS, DEAD_AFTER_QUIETS = 1000, 2, 3
local RETRY_FIRST, RETRY_MAX = 0.02, 0.5
-- Maximum number of frames that are handled before other work of the worker. A million pushes in a row must not delay
-- requests. The pause is the shortest one of nginx: without OpenResty's patches it logs a warning for each pause of 0.
local BURST, PAUSE = 256, 0.001
local READ_SIZE = 65536

local PING = resp.command("PING")
-- BCAST: Redis does not track what this worker has read. It reports every change under the prefixes, in the order of
-- the prefixes. No prefix sorts after `serial`, which the acknowledgement in follow.lua depends on.
local TRACKING = resp.command("CLIENT", "TRACKING", "ON", "BCAST",
    "PREFIX", "cert:", "PREFIX", "epoch", "PREFIX", "instances:", "PREFIX", "logkey:", "PREFIX", "policy:",
    "PREFIX", "serial")

-- State of the current connection. writing: whether the writer waits for the socket.
local outbox, outbox_n, writing
local handlers, arguments, first, last
local wake
local opening_error

local function reset()
    outbox, outbox_n, writing = {}, 0, false
    handlers, arguments, first, last = {}, {}, 1, 0
    wake = semaphore.new()
    opening_error = nil
end
reset()

-- Returns false if there is no connection; then the handler is never called.
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

-- Registers the handler of another command in the text that was sent last.
function _M.expect(handler, argument)
    last = last + 1
    handlers[last] = handler
    arguments[last] = argument
end

local function ignore() end

-- An exiting worker still has to learn what the requests that it holds wait for.
local function is_over()
    return exiting() and held.count == 0
end

-- Explains an error of Redis to an operator. The text of Redis contains no password.
local function rejection(text)
    local code = match(text, "^%u+")
    if code == "WRONGPASS" then
        return "the user or the password is wrong (ROUTES_REPLICA_USER, ROUTES_REPLICA_PASSWORD_FILE): " .. text
    elseif code == "NOAUTH" or find(text, "HELLO must be called", 1, true) then
        return "a login is required (ROUTES_REPLICA_USER, ROUTES_REPLICA_PASSWORD_FILE): " .. text
    elseif code == "NOPERM" then
        return "the user lacks a permission that the edge needs: " .. text
    end
    return text
end

local function opened(value, kind)
    if kind == "-" or kind == "!" or not value then
        -- The first error is the cause of the others.
        opening_error = opening_error or "Redis rejected the connection: " .. rejection(value or "closed")
    elseif not opening_error then
        _M.ready, _M.reason = true, nil
    end
end

-- login: { user = text, password_file = path }, or nil. Returns the command with which a connection begins.
local function greeting(login)
    if not login then
        return resp.command("HELLO", "3")
    end
    local file, err = open(login.password_file, "r")
    if not file then
        return nil, "cannot read the password of the routes replica: " .. err
    end
    local password = file:read("*l")
    file:close()
    if not password or password == "" then
        return nil, "the password of the routes replica is empty: " .. login.password_file
    end
    return resp.command("HELLO", "3", "AUTH", login.user, password)
end

-- Sends the content of the outbox.
local function flush(sock)
    local batch = outbox
    outbox, outbox_n, writing = {}, 0, true
    local sent, reason = sock:send(batch)
    writing = false
    return sent, reason
end

-- Sends the content of the outbox, unless the other sender is about to.
local function flush_all(sock)
    while outbox_n > 0 and not writing do
        local sent, reason = flush(sock)
        if not sent then
            return nil, reason
        end
    end
    return true
end

local function write_all(sock)
    while true do
        local ok, err = wake:wait(10)
        if not ok and err ~= "timeout" then
            return nil, err
        end
        local sent, reason = flush_all(sock)
        if not sent then
            -- The reader detects this too, and ends the connection.
            return nil, reason
        end
    end
end

-- The reader's source of bytes. If no data arrives it sends a PING, and it never loses the first half of a frame.
--
-- The reader itself sends the commands that follow from what it has read. The writer would run only after all other
-- work of this moment, so a busy worker would look up a changed host a millisecond later.
local function source_of(sock)
    local quiets = 0
    return function()
        while true do
            local sent, reason = flush_all(sock)
            if not sent then
                return nil, reason
            end
            local bytes, err = sock:receiveany(READ_SIZE)
            if bytes then
                quiets = 0
                return bytes
            elseif err ~= "timeout" then
                return nil, err
            elseif is_over() then
                return nil, "the worker is exiting"
            end
            quiets = quiets + 1
            if quiets >= DEAD_AFTER_QUIETS then
                return nil, "no data for " .. quiets .. " s"
            elseif quiets == PING_AFTER_QUIETS then
                _M.send(PING, ignore)
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
                return "protocol: reply without a command"
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
            sleep(PAUSE)
        end
    end
end

local function connect(replica)
    local sock = tcp()
    sock:settimeouts(CONNECT_TIMEOUT_MS, SEND_TIMEOUT_MS, QUIET_MS)
    local ok, err = address.connect(sock, replica)
    return ok and sock, err
end

-- Runs one connection. Returns why it ended, and whether the login was accepted before.
local function session(replica, login, owner)
    local hello, unreadable = greeting(login)
    if not hello then
        _M.down, _M.reason = true, unreadable
        return unreadable, false
    end
    local sock, err = connect(replica)
    if not sock then
        _M.down, _M.reason = true, err
        return err, false
    end
    reset()
    _M.connected, _M.down = true, false
    _M.send(hello .. TRACKING, opened)
    _M.expect(opened)
    owner.opened()
    local writer = spawn(write_all, sock)
    -- pcall, because a bug in a handler must end this connection only, not the link.
    local fine, reason = pcall(read_all, sock, owner)
    if not fine then
        log(ERR, "cannot read from the routes replica: ", reason)
    end
    local was_ready = _M.ready
    _M.connected, _M.ready, _M.down, _M.reason = false, false, not was_ready, reason
    kill(writer)
    sock:close()
    local waiting, with, from, to = handlers, arguments, first, last
    reset()
    owner.lost()
    for i = from, to do
        waiting[i](nil, nil, with[i])
    end
    return reason, was_ready
end

local function run(premature, replica, login, owner)
    local pause, reported = RETRY_FIRST, nil
    while not (premature or is_over()) do
        local started = now()
        local reason, was_open = session(replica, login, owner)
        ngx.update_time()
        if is_over() then
            return
        end
        if was_open or reason ~= reported then
            log(WARN, was_open and "connection to the routes replica lost, routing continues with what is known: "
                or "cannot connect to the routes replica, routing continues with what is known: ", reason)
            reported = reason
        end
        -- After a connection that lasted, the first pause is short again. A connection that Redis rejects immediately
        -- did not last.
        pause = now() - started > 1 and RETRY_FIRST or pause
        sleep(pause)
        pause = pause * 2 < RETRY_MAX and pause * 2 or RETRY_MAX
    end
end

-- owner: { opened = f(), pushed = f(value), lost = f() }. login: see above.
function _M.start(replica, owner, login)
    local ok, err = timer_at(0, run, replica, login, owner)
    if not ok then
        log(ERR, "cannot start the link to the routes replica: ", err)
        return
    end
    log(NOTICE, "following the routes replica at ", replica)
end

return _M
