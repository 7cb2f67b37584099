-- The second level of the cache: every host that was ever routed, in memory that all workers share and that survives a
-- reload or the death of a worker. It is read only when Redis does not answer, because a worker may store an old value
-- here just before the push of a change reaches it. The snapshot on disk is made from it, too.
--
--   signalbox_routes   name → "slot TAB encoded record";  "#slot" → name;  "#slots" → slots ever used;
--                      "#free" list of free slots;  "#names" → number of names
--   signalbox_wild     host → wildcard name that served it; evicts entries, because any client may invent such hosts
--   signalbox_certs    server name → certificate, as in the table
--   signalbox_requested  server names that clients asked for recently and that have no certificate (certificates.lua)
--   signalbox_state    generation, epoch, serial, workers (ack.lua)
--
-- The slots are an index. get_keys would hold the dictionary's lock for all of a million keys and block every worker;
-- slots can be read a few thousand at a time.

local record = require("signalbox.record")

local sub, find = string.sub, string.find
local tonumber = tonumber
local log, WARN = ngx.log, ngx.WARN

local routes = ngx.shared.signalbox_routes
local wild = ngx.shared.signalbox_wild
local state = ngx.shared.signalbox_state
local certs = ngx.shared.signalbox_certs

local _M = {}

local warned_full = false

local function changed()
    state:incr("generation", 1, 0)
end

local function full(name, err)
    if not warned_full then
        warned_full = true
        log(WARN, "the shared route cache is full (", err, "), first host not stored: ", name,
            "; such hosts are unknown while Redis is unavailable. Increase ROUTES_SHM.")
    end
end

-- The number of stored names.
function _M.size()
    return routes:get("#names") or 0
end

-- With find and sub, because LuaJIT compiles them but not match; a snapshot calls this a million times.
local function slot_of(held)
    return sub(held, 1, find(held, "\t", 1, true) - 1)
end

-- The slot of an insert that failed for lack of memory. In that state, it cannot be added to the list of free slots
-- either.
local spare

-- safe_set is used everywhere, because set would evict other routes to free memory.
local function insert(name, text)
    local slot = spare or routes:rpop("#free")
    if not slot then
        local new, reason = routes:incr("#slots", 1, 0)
        if not new then
            return full(name, reason)
        end
        slot = new
    end
    local ok, err = routes:safe_set("#" .. slot, name)
    if ok then
        ok, err = routes:safe_set(name, slot .. "\t" .. text)
    end
    if not ok then
        routes:delete("#" .. slot)
        spare = slot
        return full(name, err)
    end
    spare = nil
    routes:incr("#names", 1, 0)
    changed()
end

-- Stores Redis's answer about `name`. false, or a record that cannot route anything, removes it.
function _M.put(name, value)
    _M.put_text(name, value and record.encode(value))
end

-- The same with an encoded record; nil removes it.
function _M.put_text(name, text)
    local held = routes:get(name)
    if not text then
        if held then
            local slot = slot_of(held)
            routes:delete(name)
            routes:delete("#" .. slot)
            routes:lpush("#free", slot)
            routes:incr("#names", -1, 0)
            changed()
        end
        return
    end
    if not held then
        return insert(name, text)
    end
    local slot = slot_of(held)
    if sub(held, #slot + 2) == text then
        return
    end
    local ok, err = routes:safe_set(name, slot .. "\t" .. text)
    if not ok then
        return full(name, err)
    end
    changed()
end

function _M.has(name)
    return routes:get(name) ~= nil
end

local function text_of(name)
    local held = routes:get(name)
    return held and sub(held, find(held, "\t", 1, true) + 1)
end

-- The last good record of exactly this name, or nil.
function _M.get(name)
    local text = text_of(name)
    return text and record.decode(name, text)
end

-- Stores that the wildcard `name` served `host`, for times when Redis is not available.
function _M.put_alias(host, name)
    if wild:get(host) ~= name then
        wild:set(host, name)
        changed()
    end
end

function _M.drop_alias(host)
    wild:delete(host)
end

-- The last good record for a host: under its name, otherwise under the wildcard that served it.
function _M.find(host)
    local value = _M.get(host)
    if value then
        return value, host
    end
    local name = wild:get(host)
    if name then
        return _M.get(name), name
    end
    return nil
end

function _M.slots()
    return routes:get("#slots") or 0
end

-- Returns name and encoded record of a slot; nil for a free one, or if two workers inserted the name at the same time
-- and the other slot is used.
function _M.at(slot)
    local name = routes:get("#" .. slot)
    local held = name and routes:get(name)
    if held and tonumber(slot_of(held)) == slot then
        return name, sub(held, find(held, "\t", 1, true) + 1)
    end
    return nil
end

-- At most `limit` hosts that wildcards serve. This holds the lock of a dictionary that the hot path never uses.
function _M.aliases(limit)
    return wild:get_keys(limit)
end

function _M.alias(host)
    return wild:get(host)
end

-- ── certificates: name → text as in the table, the private key encrypted ───────────────────────────────────────────

-- text: nil removes it.
function _M.put_certificate(name, text)
    if certs:get(name) == text then
        return
    end
    if not text then
        certs:delete(name)
        return changed()
    end
    local ok, err = certs:safe_set(name, text)
    if not ok then
        return full(name, err)
    end
    changed()
end

-- At most `limit` names. There are few, because a handshake never adds one.
function _M.certificates(limit)
    return certs:get_keys(limit)
end

function _M.certificate(name)
    return certs:get(name)
end

-- Starts the generation at a number that no earlier run has reached, so that a generation identifies one content.
-- Returns false when the dictionary has survived a reload.
function _M.begin(now_ms)
    return (state:safe_add("generation", now_ms))
end

function _M.generation()
    return state:get("generation") or 0
end

-- Epoch and serial of the table that this router has accepted.
function _M.accepted_table()
    return state:get("epoch"), state:get("serial")
end

-- The serial only increases.
function _M.accept_table(epoch, serial)
    if epoch then
        state:set("epoch", epoch)
    end
    local held = state:get("serial")
    if serial and (not held or serial > held) then
        state:set("serial", serial)
        changed()
    end
end

-- An operator accepts the table in Redis, whatever was accepted before. Returns how often that has happened.
function _M.forget_table()
    state:delete("epoch")
    state:delete("serial")
    return state:incr("operator_accepts", 1, 0)
end

function _M.operator_accepts()
    return state:get("operator_accepts") or 0
end

return _M
