-- The hot path: a known host is routed here and nowhere else, unless its policy asks for more than a choice. No phase
-- before the balancer runs any Lua; nothing is allocated for a first try. What this module cannot answer it declines,
-- which leads to @full. (An exit with 500 would lead there too, and cost the client its connection: nginx takes
-- keep-alive away from a 500.)
--
-- nginx.conf calls one function of a module on purpose: code that stands in the block itself is called from C, and
-- LuaJIT cannot compile what returns there.

local attempts = require("signalbox.attempts")
local balancer = require("ngx.balancer")
local base = require("resty.core.base")
local budget = require("signalbox.budget")
local outliers = require("signalbox.outliers")
local choose = require("signalbox.choose")
local counters = require("signalbox.counters")
local ffi = require("ffi")
local in_flight = require("signalbox.in_flight")
local round_robin = require("signalbox.balance.round_robin")
local routes = require("signalbox.routes")
local tries = require("signalbox.tries")

local C, ffi_string = ffi.C, ffi.string
local get_request = base.get_request
local set_current_peer, set_more_tries = balancer.set_current_peer, balancer.set_more_tries
local get_last_failure = balancer.get_last_failure
local pick, pick_open, any_out = round_robin.pick, outliers.pick, outliers.any
local broke = budget.broke
local until_end = in_flight.until_end
local exit, DECLINED, ERROR = ngx.exit, ngx.DECLINED, ngx.ERROR
local log, ERR = ngx.log, ngx.ERR

local _M = {}

local FIRST = 3

-- ngx.var.host and ngx.var.logkey without what the generic accessors do about names. The buffers are written before
-- each use; ngx.var has declared the functions.
local value, length = ffi.new("unsigned char *[1]"), ffi.new("size_t[1]")
local lowcase, err_out = ffi.new("unsigned char[8]"), base.get_errmsg_ptr()
local ERR_SIZE = 256
local err_text, err_length = ffi.new("unsigned char[?]", ERR_SIZE), ffi.new("size_t[1]")

local function host_of(request)
    if C.ngx_http_lua_ffi_var_get(request, "host", 4, lowcase, 0, value, length, err_out) ~= 0 then
        return ""
    end
    return ffi_string(value[0], length[0])
end

local function set_log_key(request, key)
    err_length[0] = ERR_SIZE
    if C.ngx_http_lua_ffi_var_set(request, "logkey", 6, lowcase, key, #key, err_text, err_length) ~= 0 then
        log(ERR, "cannot set $logkey: ", ffi_string(err_text, err_length[0]))
    end
end

local function give_up(err)
    log(ERR, "cannot use an instance: ", err)
    return exit(ERROR)
end

-- Another instance for a request whose last one failed. nginx has already decided that it may be sent again.
local function again(request, route, status)
    if not route then
        -- A push has dropped it meanwhile; @full asks anew. Never DECLINED here: nginx takes that for a try that did
        -- not happen, and as long as tries are left it comes back at once, for ever.
        return exit(ERROR)
    end
    local tried, last, count = attempts.addresses()
    if last then
        outliers.failed(route, last, status)
    end
    local connected = attempts.was_connected()
    if connected then
        tries.spend(route)
    end
    counters.add("retries")
    if tries.another(route, count + 1, not connected) then
        set_more_tries(1)
    end
    local address = choose.another(route, tried or {}, last)
    local ok, err = set_current_peer(address)
    if not ok then
        return give_up(err)
    end
    if route.counted then
        -- It counts for the last one too, until the request ends: that one has earned it.
        until_end(request, address)
    end
    set_log_key(request, choose.log_key_of(route, address))
end

-- A host with a policy that asks for nothing but a choice.
local function light_of(host)
    local route = routes.special[host]
    return route and route.light and route or nil
end

local function choose_lightly(request, host)
    local route = light_of(host)
    if not route then
        return exit(DECLINED)
    end
    local address = choose.first(route)
    if tries.another(route, 1) then
        set_more_tries(2)
    end
    local ok, err = set_current_peer(address)
    if not ok then
        return give_up(err)
    end
    if route.counted then
        until_end(request, address)
    end
    set_log_key(request, choose.log_key_of(route, address))
end

function _M.plain()
    local request = get_request()
    local host = host_of(request)
    local route = routes.plain[host] or routes.wild.young[host]
    local failure, status = get_last_failure()
    if failure then
        return again(request, route or light_of(host), status)
    elseif not route then
        return choose_lightly(request, host)
    end
    if #route > FIRST and not (broke[route] and not tries.in_budget(route)) then
        -- Every instance may be tried once, for as long as proxy_next_upstream_timeout and the budget let it; each try
        -- grants the next, this one itself and the first of them. After the last one its answer is the client's, be it
        -- a 503 of its own.
        set_more_tries(2)
    end
    local ok, err = set_current_peer(any_out() and pick_open(route) or pick(route))
    if not ok then
        return give_up(err)
    end
    set_log_key(request, route[2])
end

return _M
