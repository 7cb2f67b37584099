-- A new instance starts with few requests and gets its full part after `slow_start_ms`, because its caches are cold,
-- its pools empty, and its code not compiled yet. The part grows linearly from 10%, so that there is something to warm
-- up with.

local _M = {}

local MIN_FACTOR = 0.1

-- since_ms: when it joined, or nil. Both times in unix milliseconds.
function _M.factor(since_ms, now_ms, slow_start_ms)
    if not since_ms then
        return 1
    end
    local age = now_ms - since_ms
    if age >= slow_start_ms then
        return 1
    elseif age < 0 then
        -- The clocks differ. Treat the instance as one that has just joined.
        return MIN_FACTOR
    end
    local part = age / slow_start_ms
    return part > MIN_FACTOR and part or MIN_FACTOR
end

return _M
