-- When a worker collects its garbage. A collection visits everything that the worker holds, so its cost for a request
-- is the size of the live memory, divided by the number of requests between two collections. A request leaves about 200
-- bytes (most of them are allocated by nginx's Lua module), which is little, but with the usual pause of a worker that
-- holds few hosts, the collections cost several percent of it.
--
-- Therefore the garbage may grow to SLACK_KB, or to a fifth of the live memory if that is more: the cache of a million
-- hosts is long-lived, and the memory of its worker should stay near what it holds.

local collectgarbage, getmetatable, max, newproxy = collectgarbage, getmetatable, math.max, newproxy

local _M = {}

local SLACK_KB, SLACK_PERCENT = 4096, 20

-- How much the memory may grow from `live_kb` until the next collection, as the percentage that `setpause` expects.
function _M.pause(live_kb)
    return 100 + max(SLACK_PERCENT, SLACK_KB * 100 / live_kb)
end

-- LuaJIT calls the finalizer of an unreachable object at the end of each collection, before it decides when the next
-- one begins. At this moment, all memory is live.
local function at_next_collection()
    getmetatable(newproxy(true)).__gc = function()
        collectgarbage("setpause", _M.pause(collectgarbage("count")))
        at_next_collection()
    end
end

_M.start = at_next_collection

return _M
