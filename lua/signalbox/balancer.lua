-- The hot path: chooses the instance for a request to a host that the worker knows. Before this module, usual.lua has
-- checked the form of the request; after it, only the header filter below runs. The first try of a request to a host
-- without a policy allocates nothing.
--
-- A request that this module cannot route is declined: nginx ends it as an internal 502, and error_page sends it to
-- @full, the location for all such requests (full.lua). They are requests of an unusual form, and requests to hosts
-- that the worker does not know, whose policy affects more than the choice of an instance, or that have no usable
-- instance. (Exiting with 500 would lead to @full, too, but nginx closes the client's connection after a 500.)
--
-- In nginx.conf, the balancer_by_lua_block only calls a function of this module, on purpose. Code that is written in
-- the block itself is called from C, and LuaJIT cannot compile a return to C.

local balancer = require("ngx.balancer")
local base = require("resty.core.base")
local budget = require("signalbox.budget")
local choose = require("signalbox.choose")
local ffi = require("ffi")
local in_flight = require("signalbox.in_flight")
local outliers = require("signalbox.outliers")
local paths = require("signalbox.paths")
local record = require("signalbox.record")
local response = require("signalbox.response")
local routes = require("signalbox.routes")
local tries = require("signalbox.tries")
local usual = require("signalbox.usual")

require("resty.core.response") -- declares ngx_http_lua_ffi_get_resp_status

local C, ffi_string = ffi.C, ffi.string
local status_of = C.ngx_http_lua_ffi_get_resp_status
local get_request = base.get_request
local set_current_peer, set_more_tries = balancer.set_current_peer, balancer.set_more_tries
local get_last_failure = balancer.get_last_failure
local next_of, has_several, log_key_of_plain = record.plain_next, record.plain_has_several, record.plain_log_key
local is_plain = record.is_plain
local next_open, any_ejected = outliers.pick, outliers.any
local may_grant = tries.may_grant
local broke = budget.broke
local host_of, named_by_answer = usual.host, usual.named_by_answer
local clean = response.clean
local until_end = in_flight.until_end
local exit, DECLINED, ERROR = ngx.exit, ngx.DECLINED, ngx.ERROR
local log, ERR = ngx.log, ngx.ERR

local _M = {}

local NO_CONTENT = 204

-- ngx.var.logkey without the name handling of the generic accessor. The buffers are written before each use; ngx.var
-- has declared the function.
local lowcase = ffi.new("unsigned char[16]")
local ERR_SIZE = 256
local err_text, err_length = ffi.new("unsigned char[?]", ERR_SIZE), ffi.new("size_t[1]")

local function set_log_key(request, key)
    err_length[0] = ERR_SIZE
    if C.ngx_http_lua_ffi_var_set(request, "logkey", 6, lowcase, key, #key, err_text, err_length) ~= 0 then
        log(ERR, "cannot set $logkey: ", ffi_string(err_text, err_length[0]))
    end
end

local function fail(err)
    log(ERR, "cannot use an instance: ", err)
    return exit(ERROR)
end

-- Sends the request to an instance that plain() has not chosen itself. If the policy counts requests in flight, a
-- request with several tries counts at each instance that was tried, until it ends. For an instance that failed, this
-- is intended.
local function send(request, route, address)
    local ok, err = set_current_peer(address)
    if not ok then
        return fail(err)
    end
    if route.counted then
        until_end(request, address)
    end
    set_log_key(request, record.log_key(route, address))
end

-- The record of a service (the host that a rule for paths leads to), if the hot path can serve it. The service's own
-- rules for paths do not apply.
local function record_of_service(name)
    local route = routes.plain[name] or routes.wild.young[name]
    if route then
        return route
    end
    route = routes.special[name]
    return route and route.light and route or nil
end

-- The record that serves the request, by the rules for paths of `asked`.
local function by_path(request, asked)
    local path = asked.by_path and paths.plain(request)
    if not path then
        return nil
    end
    local rule = paths.find(asked.rules.paths, path)
    if not rule then
        return asked.light and asked or nil
    end
    return rule.light and record_of_service(rule.service) or nil
end

-- The record for a request to a host with a policy, if the policy affects only the choice of an instance. If the path
-- leads to a service, it is the service's record, which may be plain.
local function special_route(request, host)
    local route = routes.special[host]
    if not route then
        return nil
    elseif route.rules.paths then
        return by_path(request, route)
    end
    return route.light and route or nil
end

-- nginx has already decided that the request may be sent again.
local function retry(request, route, status)
    if not route or tries.is_over(request) then
        -- A push has removed the record since the first try, and @full looks it up again; or the request may not be
        -- sent again, and @full answers it. Not DECLINED: nginx does not count a declined try, so it would call this
        -- function again immediately, without end.
        return exit(ERROR)
    end
    local address, more = tries.retry(route, status)
    if more and may_grant(request) then
        set_more_tries(1)
    end
    return send(request, route, address)
end

local function first_by_policy(request, route)
    local address = choose.first(route)
    if tries.another(route, 1) and may_grant(request) then
        set_more_tries(2)
    end
    return send(request, route, address)
end

function _M.plain()
    local request = get_request()
    local host = host_of(request)
    local route = routes.plain[host] or routes.wild.young[host] or special_route(request, host)
    local failure, status = get_last_failure()
    if failure then
        return retry(request, route, status)
    elseif not route then
        return exit(DECLINED)
    elseif not is_plain(route) then
        return first_by_policy(request, route)
    end
    if has_several(route) and may_grant(request) and not (broke[route] and not tries.in_budget(route)) then
        -- Every instance may be tried once, within proxy_next_upstream_timeout and the budget. Each try grants the
        -- next; this one grants itself and the next. The client gets the answer of the last one, even if that is a 503.
        set_more_tries(2)
    end
    local ok, err = set_current_peer(any_ejected() and next_open(route) or next_of(route))
    if not ok then
        return fail(err)
    end
    set_log_key(request, log_key_of_plain(route))
end

-- The header filter of the hot path.
function _M.header()
    local request = get_request()
    local status = status_of(request)
    if status < 200 and response.check() then
        return
    end
    local named = named_by_answer(request)
    if named or status == NO_CONTENT then
        clean(status, named)
    end
end

return _M
