-- Smooth weighted round robin, the algorithm of nginx itself: in each turn every instance gains its weight, and the one
-- with the most is chosen and pays the sum of all. Any stretch of requests is divided by weight, and the turns of a
-- heavy instance are spread out instead of in a row.
--
-- `gained` (address → number) belongs to the record and the worker.

local _M = {}

-- list: addresses. weight_of(address, …): a weight of at least 0; at least one must be above 0.
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
