-- Smooth weighted round robin, as nginx itself does it: every instance gains its weight each turn, the richest is
-- chosen and pays the sum of all. In any stretch of requests the shares are as the weights say, and the turns of a
-- heavy instance lie apart instead of coming in a row.
--
-- What each has gained stands in `gained` (address → number), which belongs to the record and the worker.

local _M = {}

-- list: addresses. weight_of(address, …): a weight of at least 0; one of them must be above.
function _M.pick(list, gained, weight_of, a, b)
    local total, best, most = 0, nil, nil
    for i = 1, #list do
        local address = list[i]
        local weight = weight_of(address, a, b)
        if weight > 0 then
            local now = (gained[address] or 0) + weight
            gained[address] = now
            total = total + weight
            if not most or now > most then
                best, most = address, now
            end
        end
    end
    if best then
        gained[best] = most - total
    end
    return best
end

return _M
