-- The key of TLS session tickets. A client that connects again, to any worker of any router with the same key file,
-- before or after a restart, presents its ticket and skips the signature of a full handshake.
--
-- OpenSSL's own key differs at each router and after each restart. This one is derived from the key file and from the
-- time, so all routers have it without exchanging it, and it changes every ROTATION_SECONDS. The old key is then
-- forgotten: a client with an old ticket makes a full handshake.
--
-- Tickets exist in TLS 1.3 only. There every resumption has a fresh key exchange, so an attacker who obtains the key
-- file cannot read traffic that was recorded before. TLS 1.2 resumes from the memory that the workers of a router
-- share.

local base = require("resty.core.base")
local crypto = require("signalbox.crypto")
local ffi = require("ffi")
local secret = require("signalbox.secret")

local cast, get_request, floor, sub = ffi.cast, base.get_request, math.floor, string.sub
local log, ERR, time = ngx.log, ngx.ERR, ngx.time

ffi.cdef([[
    void *ngx_http_lua_ffi_get_req_ssl_pointer(void *request, const char **err);
    void *SSL_get_SSL_CTX(const void *ssl);
    long SSL_CTX_ctrl(void *ctx, int command, long number, void *data);
    int SSL_set_session_id_context(void *ssl, const char *context, unsigned int length);
    int SSL_client_hello_get0_ext(void *ssl, unsigned int type, const unsigned char **out, size_t *length);
    uint64_t SSL_set_options(void *ssl, uint64_t options);
]])

local _M = {}

local ROTATION_SECONDS = 12 * 3600
local SET_TICKET_KEYS = 59
local NO_TICKET, SUPPORTED_VERSIONS, TLS_1_3 = 0x4000, 43, "\3\4"
-- By default, nginx uses the listener's certificate as context, which differs between routers.
local CONTEXT = "signalbox"

-- OpenSSL's symbols are in nginx's process unless it is linked statically. In that case, keys are not shared.
local found, C = pcall(function()
    local C = ffi.C
    return C.SSL_CTX_ctrl and C.ngx_http_lua_ffi_get_req_ssl_pointer and C
end)
local err_out = ffi.new("const char *[1]")

local function ssl_of_request()
    local ssl = C.ngx_http_lua_ffi_get_req_ssl_pointer(get_request(), err_out)
    if ssl == nil then
        log(ERR, "cannot find the TLS connection: ", err_out[0] ~= nil and ffi.string(err_out[0]) or "unknown")
        return nil
    end
    return ssl
end

-- Name, key of the HMAC and key of AES, as OpenSSL expects them. period: the number of the rotation.
function _M.keys(period)
    local shared = secret.of("tickets")
    local function derive(purpose)
        return crypto.hmac(shared, purpose .. " " .. period)
    end
    return sub(derive("name"), 1, 16) .. derive("hmac") .. derive("aes")
end

-- The context of OpenSSL that has the keys of this period. A worker has one for each listener with TLS.
local current, done = nil, {}

local function set_keys(ctx)
    local period = floor(time() / ROTATION_SECONDS)
    if period ~= current then
        current, done = period, {}
    end
    local address = tonumber(cast("uintptr_t", ctx))
    if done[address] then
        return
    end
    local keys = _M.keys(period)
    if C.SSL_CTX_ctrl(ctx, SET_TICKET_KEYS, #keys, cast("void *", cast("const char *", keys))) ~= 1 then
        log(ERR, "cannot set the key of TLS session tickets")
    end
    done[address] = true
end

local extension, length = ffi.new("const unsigned char *[1]"), ffi.new("size_t[1]")

-- Whether the client offers TLS 1.3, which then is the version of the connection.
local function offers_tls_1_3(ssl)
    if C.SSL_client_hello_get0_ext(ssl, SUPPORTED_VERSIONS, extension, length) ~= 1 then
        return false
    end
    -- A byte with the length, then versions of two bytes.
    local versions = ffi.string(extension[0], length[0])
    for i = 2, #versions, 2 do
        if sub(versions, i, i + 1) == TLS_1_3 then
            return true
        end
    end
    return false
end

-- At the beginning of a handshake, before OpenSSL reads a ticket.
function _M.hello()
    local ssl = found and ssl_of_request()
    if not ssl then
        return
    end
    C.SSL_set_session_id_context(ssl, CONTEXT, #CONTEXT)
    if offers_tls_1_3(ssl) then
        set_keys(C.SSL_get_SSL_CTX(ssl))
    else
        C.SSL_set_options(ssl, NO_TICKET)
    end
end

return _M
