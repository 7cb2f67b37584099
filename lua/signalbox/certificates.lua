-- Certificates by server name, from the route table: `cert:<server name>` is JSON,
--
--   {"v":1, "chain":"<PEM: the certificate, then those that lead to its authority>",
--    "key":"<base64 of: nonce (12 bytes), PEM of the private key encrypted with AES-256-GCM, tag (16 bytes)>",
--    "ends":<when it expires, unix seconds; optional>}
--
-- The encryption key is one of those in the key file (EDGE_KEY_FILE). The server name is the authenticated data,
-- exactly as in the name of the Redis key, so a private key cannot be moved to another name. A nonce is random and used
-- once.
--
-- A certificate that has expired is not presented: clients would reject it, and a matching wildcard may be valid.
--
-- A handshake looks up the name itself, its wildcard (`*.example.org` for `a.example.org`; one label only, as clients
-- match certificates), and `*`. If none has a certificate, the listener's own is presented.
--
-- Certificates are tracked like routes: a worker caches what it has read until the replica reports a change, so a new
-- certificate is used from the next handshake on, without a reload. Both use the same connection, for the same reason
-- (link.lua). While the replica is down, cached certificates are used. A worker that has just started reads those of
-- the other workers from shared memory, where they are still encrypted, and after a restart the snapshot contains them.

local backlog = require("signalbox.backlog")
local bounded = require("signalbox.bounded")
local crypto = require("signalbox.crypto")
local handshake = require("signalbox.handshake")
local hostname = require("signalbox.hostname")
local json = require("signalbox.json")
local limits = require("signalbox.limits")
local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local resp = require("signalbox.resp")
local secret = require("signalbox.secret")
local semaphore = require("ngx.semaphore")
local shared = require("signalbox.shared")
local ssl = require("ngx.ssl")

local byte, find, format, gsub = string.byte, string.find, string.format, string.gsub
local lower, sub = string.lower, string.sub
local random = math.random
local log, WARN, ERR = ngx.log, ngx.WARN, ngx.ERR
local time, worker_id = ngx.time, ngx.worker.id
local null, type, pairs, pcall = resp.null, type, pairs, pcall

local dict = ngx.shared.signalbox_certs
local requested = ngx.shared.signalbox_requested

-- max_open: maximum number of open lookups. A flood of invented names must not delay the existing ones.
local _M = { max_open = 10000 }

local LOOKUP_TIMEOUT = 0.25
local MAX_ABSENT = 16384
local MAX_BYTES = 256 * 1024
-- The first character of the keys that count a client's names.
local HASH = byte("#")
-- How long a name without a certificate is reported, the maximum number of such names in a report, and of one client.
local REQUESTED_SECONDS, MAX_REQUESTED, MAX_OF_CLIENT = 30, 100, 50

-- name → { chain, key }; names without a certificate, which any client may invent; open lookups in Redis.
local held = {}
local absent = bounded.new(MAX_ABSENT)
local pending, open_questions = {}, 0
-- Names whose certificate has changed, or may have, and that could not be looked up. Until they are, shared memory has
-- the earlier certificate.
local missed = backlog.new()

-- Returns the certificate in the form that handshakes need, or nil and the error.
local function open(name, text)
    local given = #text <= MAX_BYTES and json.decode(text)
    if type(given) ~= "table" or type(given.chain) ~= "string" or type(given.key) ~= "string" then
        return nil, "it is not JSON with `chain` and `key`"
    end
    local sealed = ngx.decode_base64(given.key)
    local keys, pem = secret.all(), nil
    for i = 1, sealed and #keys or 0 do
        pem = pem or crypto.open(keys[i], sealed, name)
    end
    if not pem then
        return nil, "its private key cannot be decrypted with this router's key file"
    end
    local chain, chain_err = ssl.parse_pem_cert(given.chain)
    if not chain then
        return nil, "its chain: " .. chain_err
    end
    local key, key_err = ssl.parse_pem_priv_key(pem)
    if not key then
        return nil, "its private key: " .. key_err
    end
    return { chain = chain, key = key, ends = type(given.ends) == "number" and given.ends or nil }
end
_M.open = open

-- Stores the value from the table for a name; nil if it has none.
local function take(name, text)
    local made, err
    if text then
        made, err = open(name, text)
        if not made then
            log(WARN, "the certificate of ", name, " in the route table cannot be used: ", err)
        end
    end
    if made then
        held[name] = made
        absent:delete(name)
        shared.put_certificate(name, text)
    else
        held[name] = nil
        absent:set(name, true)
        if not text then
            shared.put_certificate(name, nil)
        end
    end
end

local ask

local function answered(value, kind, entry)
    local name = entry.name
    pending[name] = nil
    open_questions = open_questions - 1
    if entry.dirty and lookups.trusted then
        local again = ask(name)
        if again then
            again.waiters, again.ready = entry.waiters, entry.ready
            return
        end
    end
    -- WRONGTYPE: the key was written manually and is not a certificate. After any other error the value is unknown.
    local wrong = kind == "-" and find(value, "^WRONGTYPE") ~= nil
    if value ~= nil and lookups.trusted and not entry.dirty and (kind ~= "-" and kind ~= "!" or wrong) then
        local fine, err = pcall(take, name, type(value) == "string" and not wrong and value ~= null and value or nil)
        if not fine then
            log(ERR, "cannot read the certificate of ", name, ": ", err)
        end
    end
    if entry.waiters > 0 then
        entry.ready:post(entry.waiters)
    end
    _M.continue()
end

function ask(name)
    local entry = pending[name]
    if entry or not lookups.trusted or open_questions >= _M.max_open then
        return entry
    end
    entry = { name = name, waiters = 0 }
    if not link.send(resp.command("GET", "cert:" .. name), answered, entry) then
        return nil
    end
    pending[name] = entry
    open_questions = open_questions + 1
    return entry
end

local function ask_or_remember(name)
    if not ask(name) then
        missed:add(name)
    end
end

-- Looks up the names that could not be looked up before, as far as possible.
function _M.continue()
    while missed.count > 0 and lookups.trusted and open_questions < _M.max_open do
        local name = missed:take()
        if not ask(name) then
            return missed:add(name)
        end
    end
end

-- A push reported a change of `name`.
function _M.changed(name)
    if not lookups.trusted then
        return
    end
    local entry = pending[name]
    if entry then
        entry.dirty = true
    end
    absent:delete(name)
    if held[name] or dict:get(name) then
        held[name] = nil
        ask_or_remember(name)
    end
end

-- A certificate, false when the name has none, nil when it is not known.
local function known(name)
    local one = held[name]
    if one == nil and absent:get(name) then
        return false
    end
    return one
end

local function from_memory(name)
    local text = dict:get(name)
    local made = text and open(name, text)
    if made then
        held[name] = made
    end
    return made
end

local function wait_for(name)
    local entry = ask(name)
    if entry then
        entry.ready = entry.ready or semaphore.new()
        entry.waiters = entry.waiters + 1
        if not entry.ready:wait(LOOKUP_TIMEOUT) then
            entry.waiters = entry.waiters - 1
        end
    end
    local found = known(name)
    if found == nil then
        return from_memory(name)
    end
    return found
end

-- Looks up every certificate again, because the table was accepted after a time without pushes. Until the answers
-- arrive, the cached ones are used; the table is acknowledged after the answers, except those beyond max_open.
function _M.refresh()
    absent:clear()
    missed:clear()
    for name in pairs(held) do
        ask_or_remember(name)
    end
    -- One worker also looks up those that are only in shared memory, which may have changed as well.
    local names = worker_id() == 0 and dict:get_keys(0) or {}
    for i = 1, #names do
        ask_or_remember(names[i])
    end
end

local function candidates(name)
    local dot = find(name, ".", 1, true)
    return { name, dot and "*" .. sub(name, dot) or nil, "*" }
end

local function find_certificate(name)
    local names = candidates(name)
    for i = 1, 3 do
        local one = names[i]
        local found = one and known(one)
        if one and found == nil then
            found = wait_for(one)
        end
        if found and not (found.ends and found.ends <= time()) then
            return found
        end
    end
    return nil
end

local function hex(char)
    return format("%02x", byte(char))
end

-- A client by its address (4 or 16 bytes), as a short text: the same for one IPv4 address, and for the /64 of an IPv6
-- address. The text is reported, so it is keyed: without the key, all addresses could be tried until one has it.
local function client_name(address)
    return (gsub(sub(crypto.hmac(secret.of("clients"), limits.key_of_address(address)), 1, 6), ".", hex))
end
_M.client_name = client_name

local function client_of_handshake()
    local address, kind = ssl.raw_client_addr()
    if not address or kind == "unix" then
        return "-"
    end
    return client_name(address)
end

-- Notes that a client asked for a name without a certificate. The sidecar reports the name, and the pacemaker decides
-- whether to obtain a certificate. Any client can invent names, so each may have a number of them.
local function note(name)
    if requested:get(name) then
        return
    end
    local client = client_of_handshake()
    local count = requested:incr("#" .. client, 1, 0, REQUESTED_SECONDS)
    if count and count <= MAX_OF_CLIENT then
        requested:add(name, client, REQUESTED_SECONDS)
    end
end

local function shuffled(list)
    for i = #list, 2, -1 do
        local j = random(i)
        list[i], list[j] = list[j], list[i]
    end
    return list
end

-- Names without a certificate that clients requested recently, each followed by its client. Clients take turns, and
-- their names are chosen at random, so a client that invents names does not keep the names of others out.
function _M.requested()
    local names, clients, waiting = shuffled(requested:get_keys(0)), {}, {}
    for i = 1, #names do
        local client = byte(names[i]) ~= HASH and requested:get(names[i])
        if client then
            if not waiting[client] then
                waiting[client] = {}
                clients[#clients + 1] = client
            end
            waiting[client][#waiting[client] + 1] = names[i]
        end
    end
    local list, turn, found = {}, 1, true
    while found do
        found = false
        for i = 1, #clients do
            local name = waiting[clients[i]][turn]
            if name and #list < MAX_REQUESTED then
                list[#list + 1] = name .. " " .. clients[i]
                found = true
            end
        end
        turn = turn + 1
    end
    return list
end

-- In a handshake, chooses the certificate.
function _M.present()
    local name, err = ssl.server_name()
    if not name then
        if err then
            log(ERR, "cannot read the server name of a handshake: ", err)
        end
        return
    end
    name = lower(name)
    if name == handshake.NAME then
        return handshake.wait()
    end
    if name == "" or not hostname.valid(name) then
        return
    end
    local one = find_certificate(name)
    if not one then
        -- The handshake does not wait.
        return note(name)
    end
    local ok, reason = ssl.clear_certs()
    if ok then
        ok, reason = ssl.set_cert(one.chain)
    end
    if ok then
        ok, reason = ssl.set_priv_key(one.key)
    end
    if not ok then
        log(ERR, "cannot present the certificate of ", name, ": ", reason)
        return ngx.exit(ngx.ERROR)
    end
end

return _M
