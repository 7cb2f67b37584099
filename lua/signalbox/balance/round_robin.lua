-- Round robin: each instance in turn. A plain record has its own (record.plain_next).

local _M = {}

-- The next address of a list that stores its position in `cursor`.
function _M.next(list)
    local at = list.cursor + 1
    list.cursor = at
    return list[1 + at % #list]
end

-- The next address of `list[from…to]` after `last` that is not in `tried` (a set). It starts from the last peer and not
-- from the cursor: other requests have moved the cursor, so it may point at the same dead instance again.
-- When all were tried, it returns the next one and true. nginx makes one try more than there are instances when a
-- kept-alive connection turned out to be closed, and then the same instance is fine.
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
