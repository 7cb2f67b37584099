-- How often a request may be sent, on the hot path and in @full alike. nginx wants to know before a try whether there
-- may be another after it, so tries are granted one ahead: the first with itself, each retry with the one before. A try
-- that was granted because the one before was refused can turn out to be paid for; that is one beyond the budget.

local budget = require("signalbox.budget")
local choose = require("signalbox.choose")
local defaults = require("signalbox.policy.failure")
local record = require("signalbox.record")

local now = ngx.now

local _M = {}

local function rules_of(route)
    return not record.is_plain(route) and route.rules or nil
end

local function percent_of(route)
    local rules = rules_of(route)
    return rules and rules.budget_percent or defaults.RETRIES.budget_percent
end

-- How many tries a request may have in all.
function _M.most(route)
    local instances = choose.instances(route)
    local rules = rules_of(route)
    return rules and rules.attempts and rules.attempts < instances and rules.attempts or instances
end

function _M.time_is_over(route)
    local rules = rules_of(route)
    return rules and rules.retry_timeout and (now() - ngx.req.start_time()) * 1000 >= rules.retry_timeout
end

function _M.in_budget(route)
    return budget.has(route, choose.cursor_of(route), percent_of(route))
end

function _M.spend(route)
    budget.spend(route, choose.cursor_of(route), percent_of(route))
end

-- Whether there may be another try after the `tries`-th. free: the one before was refused, so none was paid for yet;
-- with several dead instances in a row, all of them are gone through, whatever the budget.
function _M.another(route, tries, free)
    return tries < _M.most(route) and not _M.time_is_over(route) and (free or _M.in_budget(route))
end

return _M
