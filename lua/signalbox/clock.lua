-- A clock that only moves forward (CLOCK_MONOTONIC), for everything that is an age or a pause. It is the same in all
-- workers.
--
-- ngx.now() is the time of day. When an operator or NTP sets that back by an hour, a limit, an ejection or a cached
-- answer would last for an hour longer.

local ffi = require("ffi")

ffi.cdef([[
    typedef struct { long seconds, nanoseconds; } signalbox_timespec_t;
    int clock_gettime(int clock, signalbox_timespec_t *time);
]])
local C, tonumber = ffi.C, tonumber
local MONOTONIC = 1
local time = ffi.new("signalbox_timespec_t")

local _M = {}

-- Seconds since some moment before the start of nginx.
function _M.now()
    C.clock_gettime(MONOTONIC, time)
    return tonumber(time.seconds) + tonumber(time.nanoseconds) * 1e-9
end

return _M
