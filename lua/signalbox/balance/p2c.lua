-- The power of two choices: of two instances drawn at random, the one with fewer requests in flight. It is nearly as
-- good as comparing all of them, and avoids that all workers choose the same idle instance at the same moment.
-- (Mitzenmacher, "The power of two choices in randomized load balancing", 2001.)
--
-- Each worker counts its own requests in flight (in_flight.lua). Those of other workers are unknown here. That does no
-- harm: when each worker balances its own part, the sum is balanced.
--
-- With weights, the draw is weighted, and requests in flight are compared relative to the weight.

local random = math.random

local _M = {}

-- Draws an instance other than `but` (an index, or 0). total: the weights of all instances.
local function draw(list, but, total, weight_of, a, b)
    local left = random() * (but > 0 and total - weight_of(list[but], a, b) or total)
    local last
    for i = 1, #list do
        if i ~= but then
            last = i
            left = left - weight_of(list[i], a, b)
            if left < 0 then
                return i
            end
        end
    end
    return last
end

-- list: addresses, at least one. count_of(address): requests in flight.
function _M.pick(list, count_of)
    local n = #list
    if n == 1 then
        return list[1]
    end
    local first = random(n)
    local second = random(n - 1)
    if second >= first then
        second = second + 1
    end
    if count_of(list[second]) < count_of(list[first]) then
        return list[second]
    end
    return list[first]
end

-- The same with weight_of(address, a, b); at least one weight is above 0.
function _M.pick_weighted(list, count_of, weight_of, a, b)
    local total = 0
    for i = 1, #list do
        total = total + weight_of(list[i], a, b)
    end
    local first = draw(list, 0, total, weight_of, a, b)
    local first_weight = weight_of(list[first], a, b)
    if #list == 1 or total <= first_weight then
        return list[first]
    end
    local second = draw(list, first, total, weight_of, a, b)
    local second_weight = weight_of(list[second], a, b)
    -- Relative to the weight, without dividing by a weight of 0.
    if count_of(list[second]) * first_weight < count_of(list[first]) * second_weight then
        return list[second]
    end
    return list[first]
end

return _M
