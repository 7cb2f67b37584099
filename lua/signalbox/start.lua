-- The entry points from nginx to Lua: once in the master, at start and at each reload, and once in each worker.

local _M = {}

local settings

local MULTIPLES = { [""] = 1, k = 1024, m = 1024 * 1024 }

-- A size as nginx writes it: "16k".
local function bytes(size)
    local number, unit = string.match(string.lower(size), "^(%d+)([km]?)$")
    return assert(tonumber(number), "RESPONSE_HEADERS must be a size such as 16k") * MULTIPLES[unit]
end

local SPANS = { ms = 1, [""] = 1000, s = 1000, m = 60000, h = 3600000, d = 86400000 }

-- A time as nginx writes it: "10s", "1m 30s". 0 is no limit.
local function milliseconds(time)
    local sum = 0
    for number, unit in string.gmatch(string.lower(time), "(%d+)(%a*)") do
        sum = sum + tonumber(number) * assert(SPANS[unit], "RETRY_TIMEOUT must be a time such as 10s")
    end
    return sum > 0 and sum or math.huge
end

-- Every module is loaded here. An error in one therefore prevents the start or the reload, and never affects a request,
-- and the workers share the memory of the compiled code.
function _M.master(given)
    settings = given
    local shared = require("signalbox.shared")
    require("signalbox.secret").load(settings.key_file)
    require("signalbox.address").reserve(settings.reserved or "")
    require("signalbox.guards").https_port = settings.https_port
    require("signalbox.attempts").max_header_bytes = bytes(settings.response_headers)
    require("signalbox.tries").retry_timeout_ms = milliseconds(settings.retry_timeout)
    require("signalbox.balancer")
    require("signalbox.full")
    require("signalbox.admin")
    require("signalbox.metrics")
    -- After a reload, the shared dictionary is newer than any file.
    if shared.begin(ngx.now() * 1000) then
        require("signalbox.snapshot").load(settings.snapshot_path)
    end
end

function _M.worker()
    require("signalbox.garbage").start()
    -- Workers are forked from one master. With its random seed, all would start with the same instance of each host.
    math.randomseed(ngx.now() * 1000 + ngx.worker.pid() * 7919)
    require("signalbox.ack").join()
    require("signalbox.claims").join()
    local ok, err = ngx.timer.every(1, require("signalbox.in_flight").publish)
    if ok then
        ok, err = ngx.timer.every(1, require("signalbox.claims").sweep)
    end
    if not ok then
        ngx.log(ngx.ERR, "cannot start the timers for counts of requests in flight: ", err)
    end
    if settings.tls and settings.tls ~= "" and ngx.worker.id() == 0 then
        ok, err = ngx.timer.at(0, require("signalbox.handshake").check, settings.tls)
        if not ok then
            ngx.log(ngx.ERR, "cannot start the check of TLS handshakes: ", err)
        end
    end
    local user, password_file = settings.replica_user or "", settings.replica_password_file or ""
    -- Without a password file there is no login. A password without a user name is that of the user `default`.
    local login
    if password_file ~= "" then
        login = { user = user ~= "" and user or "default", password_file = password_file }
    end
    require("signalbox.follow").start(settings.replica, login)
end

return _M
