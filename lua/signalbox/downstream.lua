-- Whether the client of a request that waits has left. nginx itself checks this only while it proxies a request.
--
-- `lua_check_client_abort` in edge.conf ends most of these requests as soon as the client leaves. It does not see the
-- end of a connection behind data that nothing has read yet: the next request, or the last message of TLS.

local base = require("resty.core.base")
local ffi = require("ffi")
local response = require("signalbox.response")

local C, cast = ffi.C, ffi.cast
local get_request = base.get_request

ffi.cdef([[
    struct signalbox_pollfd { int fd; short events, revents; };
    int poll(struct signalbox_pollfd *fds, unsigned long count, int timeout_ms);
]])
local ERROR, HUNG_UP, CLOSED_BY_PEER = 0x8, 0x10, 0x2000
local watched = ffi.new("struct signalbox_pollfd[1]")

local _M = {}

-- A client that closes only its own direction has left as well, as for nginx.
function _M.has_left()
    local pointer = get_request()
    local request = response.request(pointer)
    if not request or request.connection == nil then
        return false
    end
    watched[0].fd = cast("signalbox_connection_t *", request.connection).fd
    watched[0].events, watched[0].revents = CLOSED_BY_PEER, 0
    return C.poll(watched, 1, 0) > 0
        and bit.band(watched[0].revents, ERROR + HUNG_UP + CLOSED_BY_PEER) ~= 0
end

return _M
