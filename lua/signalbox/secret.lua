-- The key that routers share. The master reads it at start from a file of 64 hexadecimal digits (32 bytes). The file
-- may have several keys, one per line: the first is the key, the others only decrypt what they encrypted before a
-- rotation. Each purpose has a key derived from it, so that no derived key reveals another:
--
--   certificates   decrypts the private keys of the route table (certificates.lua); uses the file's keys themselves,
--                  because the pacemaker encrypts with the first
--   sticky         digests in cookies (balance/sticky.lua)
--   target         tickets for one instance (target.lua)
--   tickets        keys of TLS session tickets (tickets.lua)
--   clients        names of clients in reports of requested certificates (certificates.lua)
--   access         digests of correct passwords and of requests to forward authentication, for caches (access/)
--   maintenance    comparison of a header with the agreed value (guards.lua)
--   daemons        proofs by which nginx and the daemons recognize each other's requests, see proof(). The sidecar has
--                  a file with these derived keys only
--
-- The file may be readable for its owner and its group only (0600, 0640), as the pacemaker demands for its copy.
--
-- Without a file, the key is random and lasts for this run of nginx and its reloads: cookies are invalid after a
-- restart and at other routers, and certificates of the table cannot be used.

local crypto = require("signalbox.crypto")

local bit = require("bit")
local ffi = require("ffi")

local byte, char, format = string.byte, string.char, string.format
local gmatch, gsub, sub = string.gmatch, string.gsub, string.sub
local tonumber = tonumber
local log, WARN = ngx.log, ngx.WARN
local state = ngx.shared.signalbox_state

local _M = { from_file = false }

local SIZE = 32
local MAX_KEYS = 8
-- All keys, and the first of them.
local keys, key = {}, nil
local derived, proofs = {}, {}

-- statx, because its structure is the same on all processors.
ffi.cdef("int statx(int folder, const char *path, int flags, unsigned int mask, void *buffer);")
local AT_FDCWD, STATX_MODE, STATX_BYTES, MODE_AT = -100, 2, 256, 28
-- Octal 037: write access of the group, and any access of others.
local FORBIDDEN_MODE, PERMISSIONS = 0x1f, 0x1ff

-- The permissions of a file, or nil if they cannot be read.
local function permissions(path)
    local buffer = ffi.new("unsigned char[?]", STATX_BYTES)
    local found, failed = pcall(function() return ffi.C.statx(AT_FDCWD, path, 0, STATX_MODE, buffer) end)
    if not found or failed ~= 0 then
        return nil
    end
    return bit.band(buffer[MODE_AT] + buffer[MODE_AT + 1] * 256, PERMISSIONS)
end

local function read(path)
    local file, err = io.open(path, "rb")
    if not file then
        return nil, err
    end
    local mode = permissions(path)
    if mode and bit.band(mode, FORBIDDEN_MODE) ~= 0 then
        file:close()
        return nil, format("%s has mode %o: others could read or change it; make it 0600, or 0640", path, mode)
    end
    local text = file:read(4096) or ""
    file:close()
    local found = {}
    for line in gmatch(text, "%S+") do
        if #line ~= SIZE * 2 or line:find("%X") then
            return nil, path .. " must have " .. SIZE * 2 .. " hexadecimal digits per line"
        end
        found[#found + 1] = gsub(line, "%x%x", function(digits)
            return char(tonumber(digits, 16))
        end)
    end
    if #found == 0 or #found > MAX_KEYS then
        return nil, path .. " must have 1 to " .. MAX_KEYS .. " keys"
    end
    return found
end

local function random()
    local kept = state:get("secret")
    if not kept then
        kept = crypto.random(SIZE)
        state:set("secret", kept)
    end
    return kept
end

-- Runs in the master, which may read files that workers may not. path: empty for none. A file that cannot be used
-- prevents the start, because continuing with another key would end all sessions.
function _M.load(path)
    derived, proofs = {}, {}
    if path == "" then
        log(WARN, "EDGE_KEY_FILE is not set: the sidecar stores no snapshot of the route table, because it cannot ",
            "prove who it is; certificates of the table are not used, and sessions end with nginx")
        key, _M.from_file = random(), false
        keys = { key }
        return
    end
    local found, err = read(path)
    if not found then
        error("the key file cannot be used: " .. err, 0)
    end
    keys, key = found, found[1]
    _M.from_file = true
end

-- All keys, 32 bytes each.
function _M.all()
    return keys
end

-- The key derived for `purpose`.
function _M.of(purpose)
    local own = derived[purpose]
    if not own then
        own = crypto.hmac(key, "signalbox " .. purpose)
        derived[purpose] = own
    end
    return own
end

-- The proofs of a sender, one for each key of the file. None without a file: no other process knows a random key.
local function proofs_of(sender)
    local list = proofs[sender]
    if not list then
        list = {}
        for i = 1, _M.from_file and #keys or 0 do
            local own = crypto.hmac(crypto.hmac(keys[i], "signalbox daemons"), "signalbox " .. sender)
            list[i] = gsub(own, ".", function(c) return format("%02x", byte(c)) end)
        end
        proofs[sender] = list
    end
    return list
end

-- What requests of `sender` to another part of Signalbox contain in X-Signalbox-Proof: "edge" (nginx) or "sidecar".
-- Empty without a key file. A part that receives it cannot present it as another sender.
function _M.proof(sender)
    return proofs_of(sender)[1] or ""
end

-- Whether the current request was sent by `sender`.
function _M.is_from(sender)
    local presented = ngx.var.http_x_signalbox_proof
    local list = presented and proofs_of(sender) or {}
    for i = 1, #list do
        if crypto.same(key, presented, list[i]) then
            return true
        end
    end
    return false
end

-- For tests.
function _M.set(bytes)
    key, derived, proofs, _M.from_file = sub(bytes, 1, SIZE), {}, {}, true
    keys = { key }
end

return _M
