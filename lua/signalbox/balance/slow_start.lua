-- An instance that has just come gets little at first and its full part after `slow_start_ms`: caches are cold, pools
-- empty, code not compiled yet. The part grows evenly with time, from a tenth, so that there is something to warm up
-- with.

local _M = {}

local LEAST = 0.1

-- since_ms: when it came, or nil. Both in unix milliseconds.
function _M.factor(since_ms, now_ms, slow_start_ms)
    if not since_ms then
        return 1
    end
    local age = now_ms - since_ms
    if age >= slow_start_ms then
        return 1
    elseif age < 0 then
        -- Clocks differ; it came just now.
        return LEAST
    end
    local part = age / slow_start_ms
    return part > LEAST and part or LEAST
end

return _M
