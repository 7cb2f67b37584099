-- Splits the requests of a host between version types: a canary gets its percentage, or the requests that a header or
-- cookie assigns to it. The choice is random and not by counting, because requests have patterns (a page, then its
-- images) that could synchronize with a count.

local _M = {}

-- shares: { {version type, percent}, … }. groups: version type → its instances. dice: in [0, 1).
-- The percentage of a version type without instances goes to the others, in proportion. nil when none has instances.
function _M.pick(shares, groups, dice)
    local total = 0
    for i = 1, #shares do
        if groups[shares[i][1]] then
            total = total + shares[i][2]
        end
    end
    local left, last = dice * total, nil
    for i = 1, #shares do
        local id, percent = shares[i][1], shares[i][2]
        if percent > 0 and groups[id] then
            last = id
            left = left - percent
            if left < 0 then
                return id
            end
        end
    end
    return last
end

-- Whether `id` has a percentage above 0 in `shares`.
function _M.has(shares, id)
    for i = 1, #shares do
        if shares[i][1] == id and shares[i][2] > 0 then
            return true
        end
    end
    return false
end

return _M
