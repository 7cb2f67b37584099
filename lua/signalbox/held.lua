-- Requests that wait until their host has an instance (`hold_ms`). The push that adds one wakes them. Each name has its
-- own semaphore, so a push wakes only the requests of that name.

local semaphore = require("ngx.semaphore")

local _M = { count = 0 }

-- Maximum number of held requests of one worker. More would only overload an instance that has just started.
local MAX_HELD = 4096

local waiting = {}

-- Called after the worker has applied a change of `name`.
function _M.arrived(name)
    local entry = waiting[name]
    if entry then
        waiting[name] = nil
        entry.ready:post(entry.waiters)
    end
end

-- Waits until a change of `name` arrives, at most `seconds`. Returns false if the request may not wait.
function _M.wait(name, seconds)
    if _M.count >= MAX_HELD or ngx.worker.exiting() then
        return false
    end
    local entry = waiting[name]
    if not entry then
        entry = { ready = semaphore.new(), waiters = 0 }
        waiting[name] = entry
    end
    entry.waiters = entry.waiters + 1
    _M.count = _M.count + 1
    local ok = entry.ready:wait(seconds)
    _M.count = _M.count - 1
    if not ok then
        entry.waiters = entry.waiters - 1
        if entry.waiters == 0 and waiting[name] == entry then
            waiting[name] = nil
        end
    end
    return true
end

return _M
