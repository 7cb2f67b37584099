-- Whether the only instance of a host, which has refused a connection, accepts connections again. However many requests
-- and hosts wait for an address, a worker tries one connection at a time and interval; when it succeeds, all are woken.
--
-- A request whose turn it is may end during its probe, because its client leaves. So a turn is a time and not a flag:
-- nothing has to end it.

local clock = require("signalbox.clock")
local connect = require("signalbox.address").connect
local held = require("signalbox.held")

local now = clock.now
local tcp = ngx.socket.tcp

-- INTERVAL_SECONDS: how often a waiting request checks whether it is its turn.
local _M = { INTERVAL_SECONDS = 0.2 }

local TIMEOUT_MS = 200
-- Less than the interval, so that the timer of a request never ends too early by a millisecond.
local PAUSE_SECONDS = 0.15

local function accepts_connections(address)
    local socket = tcp()
    socket:settimeouts(TIMEOUT_MS, TIMEOUT_MS, TIMEOUT_MS)
    local ok = connect(socket, address)
    if ok then
        socket:close()
    end
    return ok ~= nil
end

-- The number of successful probes of the address for which the place waits. shared: of the place.
function _M.successes(shared)
    return shared.successes or 0
end

-- Whether the address accepts connections. seen: the number of successes when the request began to wait.
function _M.succeeds(shared, address, seen)
    if _M.successes(shared) ~= seen then
        return true
    end
    local begun = now()
    if begun < (shared.due or 0) then
        return false
    end
    shared.due = begun + TIMEOUT_MS / 1000
    local ok = accepts_connections(address)
    shared.due = begun + PAUSE_SECONDS
    if ok then
        shared.successes = _M.successes(shared) + 1
        held.arrived(address)
    end
    return ok
end

return _M
