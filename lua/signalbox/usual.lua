-- The first step of the hot path: whether the request is usual, and a new ID for it. In a usual request the names
-- agree, the port is valid, the connection has no options and no upgrade, no edge was passed before, and the path is
-- UTF-8. The balancer declines others.
--
-- log.conf decides this by a pattern. This module decides the same for requests that need no pattern, which are almost
-- all of them, in a fifth of the instructions, and leaves the others to the pattern. It also makes the request ID:
-- nginx asks OpenSSL for 16 random bytes per request, which costs an eighth of all instructions, most of them per call.

local base = require("resty.core.base")
local crypto = require("signalbox.crypto")
local ffi = require("ffi")

require("resty.core.request") -- declares ngx_http_lua_ffi_req_get_headers
require("resty.core.var")

local C, ffi_string, cast, band = ffi.C, ffi.string, ffi.cast, require("bit").band
local get_request = base.get_request

local _M = {}

-- ── the request ID ─────────────────────────────────────────────────────────────────────────────────────────────────

-- Random digits for many IDs, used one after the other. Each worker generates its first ones after the fork.
local ID_DIGITS, IDS = 32, 256
local digits, left = ffi.new("char[?]", ID_DIGITS * IDS), 0
local HEX = "0123456789abcdef"

local function make_digits()
    local random = crypto.random(ID_DIGITS * IDS / 2)
    for i = 0, #random - 1 do
        local byte = random:byte(i + 1)
        digits[2 * i] = HEX:byte(byte / 16 + 1)
        digits[2 * i + 1] = HEX:byte(byte % 16 + 1)
    end
    left = IDS
end

local function next_id()
    if left == 0 then
        make_digits()
    end
    left = left - 1
    return digits + left * ID_DIGITS
end

-- ── variables, without the name handling of the generic accessors ──────────────────────────────────────────────────

local value, length = ffi.new("unsigned char *[1]"), ffi.new("size_t[1]")
local lowcase, err_out = ffi.new("unsigned char[32]"), base.get_errmsg_ptr()
local ERR_SIZE = 256
local err_text, err_length = ffi.new("unsigned char[?]", ERR_SIZE), ffi.new("size_t[1]")

-- Sets `value` and `length`. False if the variable has no value.
local function get(request, name)
    return C.ngx_http_lua_ffi_var_get(request, name, #name, lowcase, 0, value, length, err_out) == 0
end

local function text(request, name)
    return get(request, name) and ffi_string(value[0], length[0]) or nil
end

local function set(request, name, bytes, size)
    err_length[0] = ERR_SIZE
    if C.ngx_http_lua_ffi_var_set(request, name, #name, lowcase, bytes, size, err_text, err_length) ~= 0 then
        error("cannot set $" .. name .. ": " .. ffi_string(err_text, err_length[0]))
    end
end

-- ── usual requests ─────────────────────────────────────────────────────────────────────────────────────────────────

local MAX_HEADERS = 64
local headers = ffi.new("ngx_http_lua_ffi_table_elt_t[?]", MAX_HEADERS)
local truncated = ffi.new("int[1]")

local PLAIN_CONNECTION = { close = true, ["keep-alive"] = true, ["Keep-Alive"] = true }
local FIRST_OF_BOTH, CONNECTION_SIZE, CDN_LOOP_SIZE = 99, 10, 8 -- "c"

-- Whether no header concerns the connection or edges that the request has passed. Every line is read, because a client
-- may repeat one.
local function has_plain_headers(request)
    local count = C.ngx_http_lua_ffi_req_get_headers_count(request, MAX_HEADERS, truncated)
    if count <= 0 or truncated[0] ~= 0 or C.ngx_http_lua_ffi_req_get_headers(request, headers, count, 0) ~= 0 then
        return false
    end
    for i = 0, count - 1 do
        local name, size = headers[i].key.data, headers[i].key.len
        if (size == CONNECTION_SIZE or size == CDN_LOOP_SIZE) and name[0] == FIRST_OF_BOTH then
            local header = ffi_string(name, size)
            local given = headers[i].value
            if header == "cdn-loop"
                or header == "connection" and not PLAIN_CONNECTION[ffi_string(given.data, given.len)] then
                return false
            end
        end
    end
    return true
end

-- Whether the text in `value` is ASCII. It is checked eight bytes at a time; the last eight overlap the previous ones.
local function is_ascii()
    local bytes, size = value[0], tonumber(length[0])
    if size < 8 then
        for i = 0, size - 1 do
            if bytes[i] > 127 then
                return false
            end
        end
        return true
    end
    for i = 0, size - 8, 8 do
        if band(cast("uint64_t *", bytes + i)[0], 0x8080808080808080ULL) ~= 0 then
            return false
        end
    end
    return band(cast("uint64_t *", bytes + (size - 8))[0], 0x8080808080808080ULL) == 0
end

-- The host of the last usual request. The balancer runs immediately afterwards, unless nginx has to read a body first.
local last_request, last_host

-- In a `set` directive: returns the host of a usual request, or an empty text. Sets $edge_host and $edge_new_id.
function _M.begin()
    local request = get_request()
    set(request, "edge_new_id", next_id(), ID_DIGITS)
    local host = text(request, "host")
    if host and host == text(request, "http_host") and get(request, "uri") and is_ascii()
        and has_plain_headers(request) then
        set(request, "edge_host", host, #host)
        last_request, last_host = request, host
        return host
    end
    last_request = nil
    get(request, "edge_host") -- evaluates the pattern
    return text(request, "edge_name") or ""
end

-- The host of a usual request, or an empty text, which is not a name in the table. Two requests in flight never have
-- the same address, and each has called begin().
function _M.host(request)
    if request == last_request then
        return last_host
    end
    return text(request, "edge_name") or ""
end

return _M
