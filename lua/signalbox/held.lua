-- Requests that wait: until their host has an instance (`hold_ms`), until its only instance accepts connections again,
-- or until the host is resumed (`pause`).
--
--   enter(name, host, address) ─▶ place ─▶ wait(place, seconds), as often as necessary ─▶ leave(place)
--
-- A request takes its place once, and keeps it until it leaves. It waits under every name of the table that may serve
-- its host: one that `*.example.org` serves is woken when `a.example.org` gets an instance. Each request has its own
-- semaphore, which keeps a call that comes while the request is busy.

local downstream = require("signalbox.downstream")
local hostname = require("signalbox.hostname")
local semaphore = require("ngx.semaphore")

local min, pairs = math.min, pairs

local _M = { count = 0 }

-- Maximum number of held requests of one worker; more would only overload an instance that has just started. A name may
-- have as many places as are free without the reserve, at most 4,096, so the requests of one host leave places for
-- those of others. Together, several hosts could still take all of these; the reserve is for names with few requests.
local MAX_HELD, RESERVED, FEW = 10240, 2048, 16
-- How often a waiting request checks whether its client is still there.
local CHECK_SECONDS = 1

-- Name of the table, or address of an instance → { places = set of places that wait under it, listeners = their number,
-- counted = number of places that are counted for this name }. Exists while a request waits under it.
local waiting = {}

-- Called after the worker has applied a change of the name, or when the address accepts connections.
function _M.arrived(key)
    local entry = waiting[key]
    if entry then
        for place in pairs(entry.places) do
            if not place.called then
                place.called = true
                place.ready:post(1)
            end
        end
    end
end

-- Whether a request waits for a change of this name.
function _M.awaits(name)
    return waiting[name] ~= nil
end

-- Calls f(name) for each key under which a request waits.
function _M.each(f)
    for key in pairs(waiting) do
        f(key)
    end
end

local function listen(place, key)
    local entry = waiting[key]
    if not entry then
        entry = { places = {}, listeners = 0, counted = 0 }
        waiting[key] = entry
    end
    if not entry.places[place] then
        entry.places[place] = true
        entry.listeners = entry.listeners + 1
        place.keys[#place.keys + 1] = key
    end
    return entry
end

local function is_full(name)
    local entry = waiting[name]
    local counted, free = entry and entry.counted or 0, MAX_HELD - _M.count
    return free <= 0 or counted >= FEW and counted >= free - RESERVED
end

-- Takes a place for the current request. name: the name of the table that serves `host`, for which the place counts.
-- address: an instance that refuses connections, if arrived(address) wakes the request, too. Returns nil if the request
-- may not wait.
function _M.enter(name, host, address)
    local ctx = ngx.ctx
    -- An exiting worker follows the table only while requests wait (link.lua), so none may begin to.
    if is_full(name) or ngx.worker.exiting() and not ctx.has_waited then
        return nil
    end
    local place = { name = name, keys = {}, ready = semaphore.new(), called = false }
    local entry = listen(place, name)
    entry.counted = entry.counted + 1
    local names = {}
    for i = 1, hostname.candidates(host, names) do
        listen(place, names[i])
    end
    -- What the requests that wait for the address know about it (probe.lua).
    place.shared = address and listen(place, address)
    _M.count = _M.count + 1
    ctx.held, ctx.has_waited = place, true
    return place
end

function _M.leave(place)
    local keys, ctx = place.keys, ngx.ctx
    if ctx.held == place then
        ctx.held = nil
    end
    if not keys then
        return
    end
    place.keys = nil
    _M.count = _M.count - 1
    waiting[place.name].counted = waiting[place.name].counted - 1
    for i = 1, #keys do
        local entry = waiting[keys[i]]
        entry.places[place] = nil
        entry.listeners = entry.listeners - 1
        if entry.listeners == 0 then
            waiting[keys[i]] = nil
        end
    end
end

-- Waits until arrived() is called for one of the place's keys, at most `seconds`. A call since the last wait counts.
-- Returns false if the client has left.
function _M.wait(place, seconds)
    local called, has_left
    repeat
        local slice = min(seconds, CHECK_SECONDS)
        called = place.ready:wait(slice)
        seconds = seconds - slice
        has_left = downstream.has_left()
    until called or has_left or seconds <= 0
    if called then
        place.called = false
    end
    return not has_left
end

-- Log phase: nginx has ended the request while it waited, because its client has left.
function _M.finish()
    local place = ngx.ctx.held
    if place then
        _M.leave(place)
    end
end

return _M
