-- Retries are for the odd failure. When everything fails they only multiply the load on what is left, so each host has
-- a budget at each worker: a part of its requests, and a few a second so that a quiet host has some too.
--
-- A connection that was refused costs nobody anything and is always tried elsewhere; see choose.may_go_on.
--
-- Nothing is counted while nothing fails: how many requests there were is told by the record's cursor.

local now = ngx.now
local setmetatable = setmetatable

local _M = {}

local PER_SECOND = 10
local MOST = 100

-- Record → { tokens, cursor then, time then }. A record that was replaced takes its account with it.
local accounts = setmetatable({}, { __mode = "k" })
-- Those whose last account was empty; the hot path looks here and nowhere else.
local broke = setmetatable({}, { __mode = "k" })
_M.broke = broke

local function refill(account, cursor, percent)
    local time = now()
    local tokens = account[1] + (cursor - account[2]) * percent / 100
    if percent > 0 then
        tokens = tokens + (time - account[3]) * PER_SECOND
    end
    account[1], account[2], account[3] = tokens < MOST and tokens or MOST, cursor, time
    return account[1]
end

-- A retry happens. cursor: of the record. percent: retries for each hundred requests.
function _M.spend(route, cursor, percent)
    local account = accounts[route]
    if not account then
        account = { percent > 0 and MOST or 0, cursor, now() }
        accounts[route] = account
    end
    local left = refill(account, cursor, percent) - 1
    account[1] = left > 0 and left or 0
    if left < 1 then
        broke[route] = true
    end
end

-- Whether a request may be sent once more.
function _M.has(route, cursor, percent)
    if percent == 0 then
        return false
    elseif not broke[route] then
        return true
    elseif refill(accounts[route], cursor, percent) >= 1 then
        broke[route] = nil
        return true
    end
    return false
end

return _M
