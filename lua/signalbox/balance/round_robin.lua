-- One instance after the other. The cursor stands in the record itself and starts at random (record.lua), so a record
-- made anew after a change does not send every worker to the same first instance.
--
-- It never goes back: it counts the requests that this worker has routed with the record, which is how a failure is
-- weighed against all that went well (outliers.lua) and retries against requests (budget.lua), at no cost here.

local FIRST = 3

local _M = {}

-- The next address of a plain record.
function _M.pick(route)
    local at = route[1] + 1
    route[1] = at
    return route[FIRST + at % (#route - FIRST + 1)]
end

-- The next address of a list whose `cursor` says where it is.
function _M.next(list)
    local at = list.cursor + 1
    list.cursor = at
    return list[1 + at % #list]
end

-- The next address of `list[from…to]` after `last` that is not in `tried` (a set). Going on after the last peer, and
-- not from the cursor, is what makes a retry meet another instance: the cursor has been moved by other requests
-- meanwhile and may point at the same dead one again.
-- When all were tried it is simply the next, and the second value is true. nginx asks for one try more than there are
-- instances when a kept-alive connection turned out to be closed, and then the same instance is fine.
function _M.after(list, from, to, last, tried)
    local n = to - from + 1
    local start = 0
    for i = from, to do
        if list[i] == last then
            start = i - from + 1
            break
        end
    end
    for step = 0, n - 1 do
        local address = list[from + (start + step) % n]
        if not tried[address] then
            return address, false
        end
    end
    return list[from + start % n], true
end

return _M
