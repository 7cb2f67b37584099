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
--   daemons        proofs by which nginx and the daemons recognize each other's requests, see prove(). The sidecar
--                  has a file with these derived keys only
--
-- The file may be readable for its owner and its group only (0600, 0640), as the pacemaker demands for its copy.
--
-- Without a file, the key is random and lasts for this run of nginx and its reloads: cookies are invalid after a
-- restart and at other routers, and certificates of the table cannot be used.

local crypto = require("signalbox.crypto")

local bit = require("bit")
local ffi = require("ffi")

local byte, char, format = string.byte, string.char, string.format
local gmatch, gsub, match, sub = string.gmatch, string.gsub, string.match, string.sub
local abs, tonumber = math.abs, tonumber
local log, WARN = ngx.log, ngx.WARN
local state = ngx.shared.signalbox_state

-- time: unix seconds.
local _M = { from_file = false, time = ngx.time }

local SIZE = 32
local MAX_KEYS = 8
-- All keys, and the first of them.
local keys, key = {}, nil
local derived = {}
-- The keys of the daemons, one for each key of the file; none without a file, because no other process knows a random
-- key.
local daemons = {}
-- How far the time of a proof may be from now, seconds. The processes of a machine have one clock, so this is the time
-- for which one may be delayed.
local VALID_SECONDS = 5
local RUN_BYTES = 16

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

local function use(list)
    keys, key, derived, daemons, _M.from_file = list, list[1], {}, {}, true
    for i = 1, #list do
        daemons[i] = crypto.hmac(list[i], "signalbox daemons")
    end
end

-- Runs in the master, which may read files that workers may not. path: empty for none. A file that cannot be used
-- prevents the start, because continuing with another key would end all sessions.
function _M.load(path)
    derived, daemons = {}, {}
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
    use(found)
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

local function hex(bytes)
    return (gsub(bytes, ".", function(c) return format("%02x", byte(c)) end))
end

local function proof_at(own, at, statement)
    return at .. "." .. hex(crypto.hmac(own, "signalbox proof " .. at .. " " .. statement))
end

-- The name of this run of nginx and its reloads. A process that uses nginx's port before the run begins cannot know it,
-- so what the sidecar proves to such a process is of no use here.
function _M.run()
    local run = state:get("run")
    if not run then
        state:add("run", hex(crypto.random(RUN_BYTES)))
        run = state:get("run")
    end
    return run
end

-- A proof for the header X-Signalbox-Proof, valid for a few seconds; empty without a key file. crates/seal/src/proof.rs
-- defines it, and does the same for the daemons. statement, in the words of `Statement` there:
--   "client <address>"   to a daemon: the request is from this client
--   "table <run>"        by the sidecar: it requests the whole table of this run
--   "answer <proof>"     to the sidecar: the response is to the request with this proof
function _M.prove(statement)
    return daemons[1] and proof_at(daemons[1], format("%.0f", _M.time()), statement) or ""
end

-- Whether `proof` proves the statement, and is valid now.
function _M.is_proven(statement, proof)
    local at = proof and match(proof, "^(%d+)%.%x+$")
    if not at or abs(tonumber(at) - _M.time()) > VALID_SECONDS then
        return false
    end
    for i = 1, #daemons do
        if crypto.same(key, proof, proof_at(daemons[i], at, statement)) then
            return true
        end
    end
    return false
end

-- For tests.
function _M.set(bytes)
    use({ sub(bytes, 1, SIZE) })
end

return _M
