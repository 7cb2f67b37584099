-- The key that routers share, from a file of 64 hexadecimal digits (32 bytes) read by the master at start. What it is
-- used for gets a key of its own derived from it, so that none of them says anything of another:
--
--   certificates   decrypts the private keys of the route table (certificates.lua); the file's key itself, because the
--                  pacemaker encrypts with it
--   sticky         digests in cookies (balance/sticky.lua)
--   target         tickets for one instance (target.lua)
--
-- Without a file there is one at random, for this run of nginx and its reloads: cookies then end with a restart and
-- mean nothing to other routers, and certificates of the table cannot be used.

local crypto = require("signalbox.crypto")

local char, gsub, match, sub = string.char, string.gsub, string.match, string.sub
local tonumber = tonumber
local state = ngx.shared.signalbox_state

local _M = { from_file = false }

local SIZE = 32
local key
local derived = {}

local function read(path)
    local file, err = io.open(path, "rb")
    if not file then
        return nil, err
    end
    local text = match(file:read(256) or "", "^%s*(%x+)%s*$")
    file:close()
    if not text or #text ~= SIZE * 2 then
        return nil, path .. " does not hold " .. SIZE * 2 .. " hexadecimal digits"
    end
    return (gsub(text, "%x%x", function(digits)
        return char(tonumber(digits, 16))
    end))
end

local function random()
    local kept = state:get("secret")
    if not kept then
        local file = assert(io.open("/dev/urandom", "rb"))
        kept = file:read(SIZE)
        file:close()
        state:set("secret", kept)
    end
    return kept
end

-- In the master, which may still read files that workers may not. path: empty for none. A file that cannot be used
-- stops the start: an edge that quietly takes another key would end everyone's sessions.
function _M.load(path)
    derived = {}
    if path == "" then
        key, _M.from_file = random(), false
        return
    end
    local err
    key, err = read(path)
    if not key then
        error("the key file cannot be used: " .. err, 0)
    end
    _M.from_file = true
end

-- The 32 bytes of the file.
function _M.bytes()
    return key
end

-- A key of its own for `purpose`.
function _M.of(purpose)
    local own = derived[purpose]
    if not own then
        own = crypto.hmac(key, "signalbox " .. purpose)
        derived[purpose] = own
    end
    return own
end

-- For specs.
function _M.set(bytes)
    key, derived, _M.from_file = sub(bytes, 1, SIZE), {}, true
end

return _M
