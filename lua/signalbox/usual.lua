-- The first step of the hot path: whether the request is usual, and a new ID for it. In a usual request the names
-- agree, the port is valid, the connection has no options and no upgrade, no edge was passed before, and the path is
-- UTF-8. The balancer declines others.
--
-- log.conf decides this by a pattern. This module decides the same for requests that need no pattern, which are almost
-- all of them, in a fifth of the instructions, and leaves the others to the pattern. So it does with the maps for
-- request IDs, trace states, and gRPC: they are evaluated only if the client sends something of the kind. It also makes
-- the request ID: nginx asks OpenSSL for 16 random bytes per request, which costs an eighth of all instructions, most
-- of them per call.

local base = require("resty.core.base")
local crypto = require("signalbox.crypto")
local ffi = require("ffi")

require("resty.core.request") -- declares ngx_http_lua_ffi_req_get_headers
require("resty.core.var")

ffi.cdef("int memcmp(const void *a, const void *b, size_t size);")

local C, ffi_string, cast, band = ffi.C, ffi.string, ffi.cast, require("bit").band
local get_request = base.get_request
local concat, type = table.concat, type

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
-- The headers that may make a request unusual, by their first letter and size.
local LETTER_C, LETTER_H, LETTER_T, LETTER_X = 99, 104, 116, 120
local CDN_LOOP, CONNECTION, CONTENT_TYPE, HOST, TRACESTATE, X_REQUEST_ID = 8, 10, 12, 4, 10, 12
local GRPC = "application/grpc"

-- Whether the value of such a header is usual: it concerns neither the connection, nor edges that were passed, nor
-- gRPC.
local function is_plain(name, given)
    if name == "connection" then
        return PLAIN_CONNECTION[ffi_string(given.data, given.len)]
    elseif name == "content-type" then
        return given.len < #GRPC or C.memcmp(given.data, GRPC, #GRPC) ~= 0
    end
    return name ~= "cdn-loop"
end

-- The index of the only Host line in `headers`; nil if a header makes the request unusual. The second value is whether
-- the client sends a request ID or a trace state. Every line is read, because a client may repeat one.
local function read_headers()
    local request = get_request()
    local count = C.ngx_http_lua_ffi_req_get_headers_count(request, MAX_HEADERS, truncated)
    if count <= 0 or truncated[0] ~= 0 or C.ngx_http_lua_ffi_req_get_headers(request, headers, count, 0) ~= 0 then
        return nil, true
    end
    local line, identified = nil, false
    for i = 0, count - 1 do
        local letter, size = headers[i].key.data[0], headers[i].key.len
        if letter == LETTER_C then
            if (size == CONNECTION or size == CONTENT_TYPE or size == CDN_LOOP)
                and not is_plain(ffi_string(headers[i].key.data, size), headers[i].value) then
                return nil, true
            end
        elseif letter == LETTER_H then
            if size == HOST and ffi_string(headers[i].key.data, size) == "host" then
                if line then
                    return nil, true
                end
                line = i
            end
        elseif letter == LETTER_X and size == X_REQUEST_ID or letter == LETTER_T and size == TRACESTATE then
            identified = true
        end
    end
    return line, identified
end

-- Whether the text in `value` is ASCII. It is checked eight bytes at a time; the last eight overlap the previous ones.
-- The pointer is read again each time, because LuaJIT would have to allocate an object for one that is kept in a loop.
local function is_ascii()
    local size = tonumber(length[0])
    if size < 8 then
        for i = 0, size - 1 do
            if value[0][i] > 127 then
                return false
            end
        end
        return true
    end
    for i = 0, size - 8, 8 do
        if band(cast("uint64_t *", value[0] + i)[0], 0x8080808080808080ULL) ~= 0 then
            return false
        end
    end
    return band(cast("uint64_t *", value[0] + (size - 8))[0], 0x8080808080808080ULL) == 0
end

-- The host of the last usual request. The balancer runs immediately afterwards, unless nginx has to read a body first.
-- The request's address is stored as a number, because storing the pointer would allocate an object for each request.
local last_request, last_host = 0, ""

local function address_of(request)
    return tonumber(cast("uintptr_t", request))
end

-- Lets the maps of log.conf evaluate the client's request ID and trace state. The trace keeps its own ID.
local function keep_identity(request)
    get(request, "edge_traceparent")
    local id, state = text(request, "edge_request_id"), text(request, "edge_tracestate")
    set(request, "edge_new_id", id, #id)
    if state then
        set(request, "edge_sent_state", state, #state)
    end
end

-- A client may send several lines of a header that together form one list. nginx's variables contain only the first
-- line.
local LISTS = { "Connection", "CDN-Loop" }

local function join_lines()
    local given = ngx.req.get_headers(0)
    for i = 1, #LISTS do
        local lines = given[LISTS[i]]
        if type(lines) == "table" then
            ngx.req.set_header(LISTS[i], concat(lines, ", "))
        end
    end
end

-- Lets the maps of log.conf evaluate a request that the comparisons do not recognize. Returns the host for instances.
local function by_pattern(request)
    join_lines()
    local host = text(request, "edge_host") or ""
    if not get(request, "edge_name") then
        set(request, "edge_hot", "", 0)
        set(request, "edge_cold", "1", 1)
    end
    local port = text(request, "edge_given_port")
    if port and port ~= "" then
        set(request, "edge_direct_port", port, #port)
    end
    if text(request, "edge_grpc") == "1" then
        set(request, "edge_call", "1", 1)
    end
    return host
end

-- In a `set` of $edge_host: returns the host that instances receive. $edge_new_id becomes the request's ID.
--
-- The request is not stored in a local variable, because LuaJIT would have to allocate an object for the pointer in
-- each loop.
function _M.begin()
    set(get_request(), "edge_new_id", next_id(), ID_DIGITS)
    local line, identified = read_headers()
    if identified then
        keep_identity(get_request())
    end
    if line and get(get_request(), "host") then
        local size = tonumber(length[0])
        if size == headers[line].value.len and C.memcmp(value[0], headers[line].value.data, size) == 0
            and is_ascii()
        then
            local host = ffi_string(value[0], size)
            if get(get_request(), "uri") and is_ascii() then
                last_request, last_host = address_of(get_request()), host
                return host
            end
        end
    end
    last_request = 0
    return by_pattern(get_request())
end

-- What an answer names in Connection, unless it names nothing but the connection itself. In the header phase.
function _M.named_by_answer(request)
    local named = text(request, "upstream_http_connection")
    return named and not PLAIN_CONNECTION[named] and named or nil
end

-- The host of a usual request, or an empty text, which is not a name in the table. Two requests in flight never have
-- the same address, and each has called begin().
function _M.host(request)
    if address_of(request) == last_request then
        return last_host
    end
    return text(request, "edge_hot") == "1" and text(request, "host") or ""
end

return _M
