-- Where nginx hands over to Lua: once in the master, at start and at each reload, and once in each worker.

local _M = {}

local settings

-- Everything is loaded here, so that a mistake stops the start or the reload and never a request, and workers share
-- the compiled code's memory.
function _M.master(given)
    settings = given
    local shared = require("signalbox.shared")
    require("signalbox.secret").load(settings.key_file)
    require("signalbox.guards").https_port = settings.https_port
    require("signalbox.balancer")
    require("signalbox.full")
    require("signalbox.admin")
    require("signalbox.metrics")
    -- After a reload the shared dictionary is newer than any file.
    if shared.begin(ngx.now() * 1000) then
        require("signalbox.snapshot").load(settings.snapshot_path)
    end
end

function _M.worker()
    -- The cache of a million hosts is long-lived, and requests leave next to no garbage: collecting at a fifth more
    -- instead of at twice the size costs little and keeps a worker's memory near what it holds.
    collectgarbage("setpause", 120)
    -- Or all workers, forked from one master, would begin with the same instance of each host.
    math.randomseed(ngx.now() * 1000 + ngx.worker.pid() * 7919)
    require("signalbox.ack").join()
    local ok, err = ngx.timer.every(1, require("signalbox.in_flight").publish)
    if not ok then
        ngx.log(ngx.ERR, "cannot start the timer of in-flight counts: ", err)
    end
    require("signalbox.follow").start(settings.replica)
end

return _M
