-- The retry budget. Retries help with isolated failures. When everything fails, they only multiply the load on the
-- remaining instances. So each host has a budget in each worker: a percentage of its requests, plus a few per second so
-- that a quiet host can retry too.
--
-- A refused connection costs an instance nothing and is always retried elsewhere; see `free` in tries.lua.
--
-- Nothing is counted while nothing fails: the record knows how many requests there were (record.served).

local clock = require("signalbox.clock")

local now = clock.now
local setmetatable = setmetatable

local _M = {}

local PER_SECOND = 10
local MAX_TOKENS = 100
local MIN_TOKENS = -1000

-- Record → { tokens, earlier number of requests, earlier time }. The entry of a replaced record is garbage-collected
-- with it.
local accounts = setmetatable({}, { __mode = "k" })
-- Records whose account was empty when last checked. The hot path reads only this.
local broke = setmetatable({}, { __mode = "k" })
_M.broke = broke

local function refill(account, served, percent)
    local time = now()
    local tokens = account[1] + (served - account[2]) * percent / 100
    if percent > 0 then
        tokens = tokens + (time - account[3]) * PER_SECOND
    end
    account[1], account[2], account[3] = tokens < MAX_TOKENS and tokens or MAX_TOKENS, served, time
    return account[1]
end

-- Takes a retry from the budget. served: requests routed with the record. percent: retries allowed per hundred
-- requests.
function _M.spend(route, served, percent)
    local account = accounts[route]
    if not account then
        account = { percent > 0 and MAX_TOKENS or 0, served, now() }
        accounts[route] = account
    end
    -- Requests that were allowed a retry at the same time use more than is there. What is missing is a debt: without
    -- it, each group of requests that fails together would be repeated as a whole.
    local left = refill(account, served, percent) - 1
    account[1] = left > MIN_TOKENS and left or MIN_TOKENS
    if left < 1 then
        broke[route] = true
    end
end

-- Whether the budget allows one more retry.
function _M.has(route, served, percent)
    if percent == 0 then
        return false
    elseif not broke[route] then
        return true
    elseif refill(accounts[route], served, percent) >= 1 then
        broke[route] = nil
        return true
    end
    return false
end

return _M
