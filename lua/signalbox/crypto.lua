-- The parts of OpenSSL's libcrypto that the edge needs; nginx links it for TLS. HMAC-SHA-256, because nginx's Lua
-- module only has HMAC-SHA-1, authenticated encryption for the private keys of certificates, and random bytes.

local ffi = require("ffi")

local ffi_new, ffi_string, ffi_gc = ffi.new, ffi.string, ffi.gc
local sub = string.sub

ffi.cdef [[
const void *EVP_sha256(void);
unsigned char *HMAC(const void *md, const void *key, int key_length, const unsigned char *data, size_t length,
    unsigned char *out, unsigned int *out_length);
void *EVP_CIPHER_CTX_new(void);
void EVP_CIPHER_CTX_free(void *ctx);
const void *EVP_aes_256_gcm(void);
int EVP_DecryptInit_ex(void *ctx, const void *cipher, void *engine, const unsigned char *key, const unsigned char *iv);
int EVP_DecryptUpdate(void *ctx, unsigned char *out, int *out_length, const unsigned char *in, int in_length);
int EVP_DecryptFinal_ex(void *ctx, unsigned char *out, int *out_length);
int EVP_CIPHER_CTX_ctrl(void *ctx, int type, int arg, void *ptr);
int RAND_bytes(unsigned char *out, int size);
]]

local _M = {}

-- A binary that has OpenSSL linked statically hides its symbols; the system's library is used then.
local has_symbols = pcall(function()
    return ffi.C.EVP_aes_256_gcm
end)
local C = has_symbols and ffi.C or ffi.load("crypto")

local DIGEST_SIZE = 32
local NONCE_SIZE, TAG_SIZE = 12, 16
local SET_TAG = 0x11 -- EVP_CTRL_AEAD_SET_TAG

local digest = ffi_new("unsigned char[?]", DIGEST_SIZE)
local length = ffi_new("int[1]")

-- HMAC-SHA-256, 32 bytes.
function _M.hmac(key, text)
    C.HMAC(C.EVP_sha256(), key, #key, text, #text, digest, nil)
    return ffi_string(digest, DIGEST_SIZE)
end

-- Unpredictable random bytes.
function _M.random(size)
    local out = ffi_new("unsigned char[?]", size)
    if C.RAND_bytes(out, size) ~= 1 then
        error("OpenSSL has no random bytes")
    end
    return ffi_string(out, size)
end

-- Whether two texts are equal, in constant time.
function _M.same(key, a, b)
    return _M.hmac(key, a) == _M.hmac(key, b)
end

-- Decrypts AES-256-GCM. sealed: nonce (12 bytes), ciphertext, tag (16 bytes). with: the authenticated data that is not
-- encrypted. nil when the key is wrong or a byte was changed.
function _M.open(key, sealed, with)
    if #sealed < NONCE_SIZE + TAG_SIZE then
        return nil
    end
    local nonce, tag = sub(sealed, 1, NONCE_SIZE), sub(sealed, -TAG_SIZE)
    local text = sub(sealed, NONCE_SIZE + 1, -TAG_SIZE - 1)
    local ctx = ffi_gc(C.EVP_CIPHER_CTX_new(), C.EVP_CIPHER_CTX_free)
    local out = ffi_new("unsigned char[?]", #text + TAG_SIZE)
    if C.EVP_DecryptInit_ex(ctx, C.EVP_aes_256_gcm(), nil, key, nonce) ~= 1
        or C.EVP_DecryptUpdate(ctx, nil, length, with, #with) ~= 1
        or C.EVP_DecryptUpdate(ctx, out, length, text, #text) ~= 1
    then
        return nil
    end
    local written = length[0]
    if C.EVP_CIPHER_CTX_ctrl(ctx, SET_TAG, TAG_SIZE, ffi.cast("void *", tag)) ~= 1
        or C.EVP_DecryptFinal_ex(ctx, out + written, length) ~= 1
    then
        return nil
    end
    return ffi_string(out, written)
end

return _M
