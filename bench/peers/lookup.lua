-- Queries Redis for each request over a new connection: two queries, one reply each.
local balancer = require("ngx.balancer")
local found, redis = pcall(require, "resty.redis")
if not found then
    redis = require("nginx.redis") -- Debian's name for it
end

local _M = {}

function _M.find(host, port)
    local name = ngx.var.host
    local client = redis:new()
    client:set_timeout(1000)
    local connected, err = client:connect(host, port)
    if not connected then
        ngx.log(ngx.ERR, "redis: ", err)
        return ngx.exit(503)
    end
    local addresses, failed = client:smembers("instances:" .. name)
    local key, missing = client:get("logkey:" .. name)
    client:close()
    if not addresses or not key then
        ngx.log(ngx.ERR, "redis: ", failed or missing)
        return ngx.exit(503)
    end
    if #addresses == 0 then
        return ngx.exit(404)
    end
    ngx.var.logkey = key
    ngx.ctx.instance = addresses[math.random(#addresses)]
end

function _M.balance()
    local ip, port = ngx.ctx.instance:match("^(.-):(%d+)$")
    local set, err = balancer.set_current_peer(ip, tonumber(port))
    if not set then
        ngx.log(ngx.ERR, "peer: ", err)
        return ngx.exit(502)
    end
end

return _M
