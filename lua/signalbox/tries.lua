-- Limits how often a request is sent, and chooses the instance after a failure, for the hot path and for @full. nginx
-- must know before a try whether another may follow. Tries are therefore granted one ahead: the second together with
-- the first, the third together with the second, and so on. The try after a refused connection is granted without a
-- check of the budget. If a request was sent and failed in the meantime, that try costs budget after all, so the
-- budget can be exceeded by one.

local attempts = require("signalbox.attempts")
local base = require("resty.core.base")
local budget = require("signalbox.budget")
local choose = require("signalbox.choose")
local counters = require("signalbox.counters")
local defaults = require("signalbox.policy.failure")
local ffi = require("ffi")
local outliers = require("signalbox.outliers")
local record = require("signalbox.record")

require("resty.core.request") -- declares ngx_http_lua_ffi_req_get_method

local C = ffi.C
local get_request = base.get_request
local now = ngx.now
local min = math.min
local rules_of = record.rules

-- retry_timeout_ms: RETRY_TIMEOUT, set at start. nginx measures it for each location again, see
-- window_is_over().
local _M = { retry_timeout_ms = 10000 }

-- nginx's bits of methods (ngx_http_request.h). Repeating any other method could execute its effect twice. TRACE and
-- unknown methods are omitted to be safe.
local GET, HEAD, POST, PUT, DELETE, OPTIONS, LOCK, PATCH = 0x2, 0x4, 0x8, 0x10, 0x20, 0x200, 0x1000, 0x4000
local IDEMPOTENT = { [GET] = true, [HEAD] = true, [PUT] = true, [DELETE] = true, [OPTIONS] = true }
-- Methods that nginx itself repeats only if the request was not sent. It repeats an unknown method like a GET.
local GUARDED = { [POST] = true, [LOCK] = true, [PATCH] = true }

-- Whether the method may be repeated after the request was sent.
function _M.is_idempotent()
    return IDEMPOTENT[C.ngx_http_lua_ffi_req_get_method(get_request())] == true
end

-- Whether nginx may be granted tries ahead for this request's method. Without any, nginx sends the request to @full
-- after a failure, and passes on a 503 of the instance as it is.
function _M.may_grant(request)
    local method = C.ngx_http_lua_ffi_req_get_method(request)
    return IDEMPOTENT[method] or GUARDED[method]
end

-- In the balancer, after a failed try: whether no other try is allowed, although nginx asks for one. It does so without
-- a grant when a kept-alive connection turned out to be closed.
function _M.is_over(request)
    return attempts.headers_too_large() or attempts.was_connected() and not _M.may_grant(request)
end

local function budget_percent(route)
    local rules = rules_of(route)
    return rules and rules.budget_percent or defaults.RETRIES.budget_percent
end

-- The maximum number of tries of one request.
function _M.max(route)
    local instances = record.count(route)
    local rules = rules_of(route)
    return rules and rules.attempts and rules.attempts < instances and rules.attempts or instances
end

function _M.time_is_over(route)
    local rules = rules_of(route)
    return rules and rules.retry_timeout and (now() - ngx.req.start_time()) * 1000 >= rules.retry_timeout
end

-- After a failure of a request that has left the location in which nginx measures RETRY_TIMEOUT: whether the retry
-- window is over.
function _M.window_is_over(route)
    local rules = rules_of(route)
    local limit = rules and rules.retry_timeout or _M.retry_timeout_ms
    return (now() - ngx.req.start_time()) * 1000 >= min(limit, _M.retry_timeout_ms)
end

function _M.in_budget(route)
    return budget.has(route, record.served(route), budget_percent(route))
end

-- For a request that was sent and failed, outside of the balancer: takes the next try from the budget. Returns false if
-- none is left.
function _M.spend(route)
    local served, percent = record.served(route), budget_percent(route)
    if not budget.has(route, served, percent) then
        return false
    end
    budget.spend(route, served, percent)
    return true
end

-- Whether another try may follow the `made`-th. free: the previous one was refused, so it cost nothing. If several
-- instances in a row are down, all of them are tried, regardless of the budget.
function _M.another(route, made, free)
    return made < _M.max(route) and not _M.time_is_over(route) and (free or _M.in_budget(route))
end

-- In the balancer, after a failed try that nginx allows to be repeated: records the failure and chooses the next
-- instance. status: nginx's status of the failed try. made: tries before this one; nil when these are the addresses
-- that nginx lists. Returns the address, and whether one more try may follow this one.
function _M.retry(route, status, made)
    local tried, last, addresses = attempts.addresses()
    if last then
        outliers.failed(route, last, status)
    end
    local free = not attempts.was_connected()
    if not free then
        budget.spend(route, record.served(route), budget_percent(route))
    end
    counters.add("retries")
    local more = _M.another(route, (made or addresses or 0) + 1, free)
    return (choose.another(route, tried or {}, last)), more
end

return _M
