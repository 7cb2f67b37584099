-- Finds the record of a host for @full, which may wait: in the worker's cache, in Redis, then in the last good table.

local follow = require("signalbox.follow")
local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local routes = require("signalbox.routes")
local shared = require("signalbox.shared")

local sleep = ngx.sleep

local _M = {}

local LOOKUP_TIMEOUT = 0.25
local TRUST_POLL = 0.005

-- When a worker has just started, or while a replica copies its primary, the table is accepted within a few
-- milliseconds.
local function await_trust()
    local left = LOOKUP_TIMEOUT
    while not lookups.trusted and left > 0 and not link.down and not follow.state() do
        sleep(TRUST_POLL)
        left = left - TRUST_POLL
    end
    return lookups.trusted
end

-- The last level: all hosts that any worker of this router has routed, including before a restart.
local function last_good(host)
    local value, name = shared.find(host)
    if value and not lookups.trusted then
        -- Cached, so that each host needs this lookup only once in an outage. It is looked up again when the table is
        -- trusted.
        routes.put(name, value)
    end
    return value, name
end

-- Returns a record and the name that matched; false if no name matches; nil if that is unknown.
function _M.host(host)
    local exact = routes.known(host)
    if exact then
        return exact, host
    end
    local ask = {}
    local value, name, suspect_name = routes.find(host, ask)
    if value ~= nil then
        return value, name
    elseif suspect_name then
        -- The record is from before an interruption: it is served, and looked up again in the background.
        lookups.ask(ask[1])
        return name, suspect_name
    end
    if not lookups.trusted then
        local kept, kept_name = last_good(host)
        if kept then
            return kept, kept_name
        end
    end
    if await_trust() and lookups.wait(ask, LOOKUP_TIMEOUT) then
        -- A push may discard an answer before this request continues; then it is looked up once more.
        value, name = routes.find(host, ask)
        if value == nil and lookups.wait(ask, LOOKUP_TIMEOUT) then
            value, name = routes.find(host, ask)
        end
        if value ~= nil then
            return value, name
        end
    end
    return last_good(host)
end

return _M
