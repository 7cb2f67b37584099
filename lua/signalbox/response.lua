-- Answers of instances that nginx cannot forward:
--
--   interim    103 Early Hints and other 1xx. nginx would pass it on as the final answer, and wait for the end of a
--              connection that has none. After a HEAD it would even keep the connection, and the final answer would
--              become that of the next request there. 101 is one of them unless the edge forwarded the request's
--              Upgrade: nginx would copy the instance's bytes to the client's connection if the client sent an
--              Upgrade of any kind, also in HTTP/2, where other requests share that connection.
--   not_http   anything that is not HTTP, which nginx takes for an answer of HTTP/0.9 and passes on without a status
--              line.
--
-- And what it forwards although it may not: fields of the instance's connection, which Connection names (RFC 9110,
-- 7.6.1), and the Content-Length of a 204 (8.6).
--
-- The header filters of the hot path and of @full call this module. 419 leads to @full, which answers by $edge_unusual.
--
-- nginx offers no function for two of the steps, so they access its structures. Both verify what they find there, and
-- leave a structure that they do not recognize as it is.

local base = require("resty.core.base")
local ffi = require("ffi")

require("resty.core.request") -- declares ngx_http_lua_ffi_req_get_method

local C, cast, ffi_string = ffi.C, ffi.cast, ffi.string
local get_request = base.get_request
local find, gmatch, lower = string.find, string.gmatch, string.lower
local var = ngx.var

local _M = {}

-- The value of ngx.status for an answer that nginx takes for HTTP/0.9.
local HTTP_09 = 9
local SWITCH, NO_CONTENT = 101, 204
local VERSIONS = { ["HTTP/1.0"] = 1000, ["HTTP/1.1"] = 1001, ["HTTP/2.0"] = 2000 }

-- The first fields of three structures, which are the same in all versions from 1.18 to 1.28.
ffi.cdef([[
    typedef struct { void *data, *read, *write; int fd; } signalbox_connection_t;
    typedef struct { void *read, *write; signalbox_connection_t *connection; } signalbox_upstream_t;
    typedef struct {
        uint32_t signature;
        void *connection, *ctx, *main, *server, *location, *read, *write, *cache;
        signalbox_upstream_t *upstream;
    } signalbox_request_t;
    int shutdown(int fd, int how);
]])
local SIGNATURE = 0x50545448 -- "HTTP"
local SHUT_RDWR = 2
local NEWEST = 1028999

-- The field `cache` exists only in builds with a cache.
local known = ngx.config.nginx_version <= NEWEST
    and not find(ngx.config.nginx_configure(), "without-http-cache", 1, true)

-- nginx's structure of a request, or nil if it is not recognized.
function _M.request(pointer)
    local request = known and pointer and cast("signalbox_request_t *", pointer)
    return request and request.signature == SIGNATURE and request or nil
end

-- Closes the connection to the instance, so that later data on it cannot reach another request.
local function disconnect(pointer)
    local request = _M.request(pointer)
    if not request or request.upstream == nil then
        return
    end
    local connection = request.upstream.connection
    if connection ~= nil and connection.data == cast("void *", pointer) then
        C.shutdown(connection.fd, SHUT_RDWR)
    end
end

-- nginx has overwritten the client's HTTP version with that of the answer, so it would also send the edge's own answer
-- without a status line. In the structure, the version follows the method, and the request line follows the version.
local MAX_WORDS = 180

local function restore_version(pointer)
    local version, line = VERSIONS[var.server_protocol], var.request
    if not version or not line then
        return
    end
    local method = C.ngx_http_lua_ffi_req_get_method(pointer)
    local words = cast("uintptr_t *", pointer)
    for i = 0, MAX_WORDS do
        if words[i] == method and words[i + 1] == HTTP_09 and words[i + 2] == #line
            and ffi_string(cast("char *", words[i + 3]), #line) == line then
            words[i + 1] = version
            return
        end
    end
end

-- In a header filter: sends the request to @full if the answer cannot be forwarded. Returns true in that case, because
-- ngx.exit returns in a header filter.
function _M.check()
    local status = ngx.status
    if status >= 200 or status == SWITCH and (var.edge_upgrade or "") ~= "" then
        return
    end
    local request = get_request()
    if status ~= HTTP_09 then
        disconnect(request)
        var.edge_unusual = "interim"
    elseif var.edge_unusual == "not_http" then
        -- This is the edge's own answer.
        return
    else
        restore_version(request)
        var.edge_unusual = "not_http"
    end
    ngx.exit(419)
    return true
end

-- Fields that describe the body or its framing. nginx decides about them.
local KEPT = {
    connection = true, ["content-length"] = true, ["content-type"] = true, ["content-encoding"] = true,
    ["transfer-encoding"] = true,
}

-- All fields are searched for each name, and both can be thousands. No application names so many; the rest is
-- forwarded.
local MAX_NAMES = 32

-- In a header filter, after check(): removes what ends at the edge. named: the list in the instance's Connection. It
-- does not apply to the edge's own answer after an attempt: only that has a code.
function _M.clean(status, named)
    if ngx.header["X-Signalbox-Error"] then
        return
    end
    if status == NO_CONTENT then
        ngx.header["Content-Length"] = nil
    end
    local left = MAX_NAMES
    for name in gmatch(named or "", "[^%s,]+") do
        if left == 0 then
            return
        end
        left = left - 1
        local field = lower(name)
        if not KEPT[field] and (field ~= "upgrade" or status ~= SWITCH) then
            ngx.header[field] = nil
        end
    end
end

return _M
