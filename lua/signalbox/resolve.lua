-- From a host to its record, in @full, which may wait: the worker's cache, then Redis, then what was good before.

local follow = require("signalbox.follow")
local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local routes = require("signalbox.routes")
local shared = require("signalbox.shared")

local sleep = ngx.sleep

local _M = {}

local LOOKUP_TIMEOUT = 0.25
local TRUST_POLL = 0.005

-- In the first moments of a worker, or while a replica copies its master, the answer is a few milliseconds away.
local function await_trust()
    local left = LOOKUP_TIMEOUT
    while not lookups.trusted and left > 0 and not link.down and not follow.state() do
        sleep(TRUST_POLL)
        left = left - TRUST_POLL
    end
    return lookups.trusted
end

-- The last level: what any worker of this router, or of its life before, has routed.
local function last_good(host)
    local value, name = shared.find(host)
    if value and not lookups.trusted then
        -- Kept, so that an outage costs this way once a host. When the table is trusted again it is asked again.
        routes.put(name, value)
    end
    return value, name
end

-- A record and the name that matched, false for no name, nil for unknown.
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
        -- Known from before a silence: served, and asked again by the way.
        lookups.ask(ask[1])
        return name, suspect_name
    end
    local kept, kept_name
    if not lookups.trusted then
        kept, kept_name = last_good(host)
        if kept then
            return kept, kept_name
        end
    end
    if await_trust() and lookups.wait(ask, LOOKUP_TIMEOUT) then
        -- Answers can be dropped again by a push before this request runs on; then the next round asks anew.
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
