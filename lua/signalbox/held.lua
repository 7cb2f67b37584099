-- Requests that wait until their host has an instance (`hold_ms`). The push that adds one wakes them. Each name has its
-- own semaphore, so a push wakes only the requests of that name.

local downstream = require("signalbox.downstream")
local semaphore = require("ngx.semaphore")

local min = math.min

local _M = { count = 0 }

-- Maximum number of held requests of one worker; more would only overload an instance that has just started. A name may
-- have as many places as are free, at most 4,096, so the requests of one host leave places for those of others.
local MAX_HELD = 8192
-- How often a waiting request checks whether its client is still there.
local CHECK_SECONDS = 1

local waiting = {}

-- Called after the worker has applied a change of `name`.
function _M.arrived(name)
    local entry = waiting[name]
    if entry then
        waiting[name] = nil
        entry.ready:post(entry.waiters)
    end
end

local function leave(entry, name)
    entry.waiters = entry.waiters - 1
    if entry.waiters == 0 and waiting[name] == entry then
        waiting[name] = nil
    end
end

-- Waits until a change of `name` arrives, at most `seconds`. Returns false if the request may not wait, and nil if
-- its client has left.
function _M.wait(name, seconds)
    local entry = waiting[name]
    if (entry and entry.waiters or 0) >= MAX_HELD - _M.count or ngx.worker.exiting() then
        return false
    end
    if not entry then
        entry = { ready = semaphore.new(), waiters = 0 }
        waiting[name] = entry
    end
    entry.waiters = entry.waiters + 1
    _M.count = _M.count + 1
    local ctx = ngx.ctx
    ctx.held, ctx.held_name = entry, name
    local ok, has_left
    repeat
        local slice = min(seconds, CHECK_SECONDS)
        ok = entry.ready:wait(slice)
        seconds = seconds - slice
        has_left = downstream.has_left()
    until ok or has_left or seconds <= 0
    ctx.held = nil
    _M.count = _M.count - 1
    if not ok then
        leave(entry, name)
    end
    if has_left then
        return nil
    end
    return true
end

-- Log phase: nginx has ended the request while it waited, because its client has left.
function _M.finish()
    local ctx = ngx.ctx
    if ctx.held then
        leave(ctx.held, ctx.held_name)
        ctx.held = nil
        _M.count = _M.count - 1
    end
end

return _M
