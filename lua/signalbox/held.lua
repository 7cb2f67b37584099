-- Requests that wait for their host to get an instance (`hold_ms`), woken by the push that brings one. The semaphore
-- belongs to the name, so a push wakes those who wait for it and nobody else.

local semaphore = require("ngx.semaphore")

local _M = { count = 0 }

-- Held by one worker; more would only pile up behind an instance that has just started.
local MOST = 4096

local waiting = {}

-- The worker has taken over something new about `name`.
function _M.arrived(name)
    local entry = waiting[name]
    if entry then
        waiting[name] = nil
        entry.ready:post(entry.waiters)
    end
end

-- Waits until something new arrives about `name`, at most that long. False when it may not wait.
function _M.wait(name, seconds)
    if _M.count >= MOST or ngx.worker.exiting() then
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
