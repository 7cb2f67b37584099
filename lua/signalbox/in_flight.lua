-- Requests under way at each instance, as far as they went through @full (the hot path counts nothing). Counted by each
-- worker for itself: a count that all share would cost two locked operations a request, and a worker that is killed
-- would leave its part of it behind for good.
--
-- In the shared dictionary each worker only shows its sum, once a second, for /metrics.

local worker_id, worker_count = ngx.worker.id, ngx.worker.count
local state = ngx.shared.signalbox_state

local _M = { total = 0 }

-- How long a sum counts that its worker does not renew, seconds.
local FRESH = 3

local counts = {}

function _M.of(address)
    return counts[address] or 0
end

function _M.begin(address)
    counts[address] = (counts[address] or 0) + 1
    _M.total = _M.total + 1
end

function _M.finish(address)
    local count = counts[address]
    if count then
        -- No entry for what is idle: addresses come and go.
        counts[address] = count > 1 and count - 1 or nil
        _M.total = _M.total - 1
    end
end

-- Shows the worker's sum to whoever is asked for metrics.
function _M.publish(premature)
    if not premature then
        state:set("in_flight:" .. worker_id(), _M.total, FRESH)
    end
end

-- The sum of all workers.
function _M.sum()
    local sum = 0
    for id = 0, worker_count() - 1 do
        sum = sum + (state:get("in_flight:" .. id) or 0)
    end
    return sum
end

return _M
