-- Lookups of names in Redis. There is at most one lookup of a name at a time, and all requests that need the name wait
-- for its answer.
--
-- An answer is used only while the table is trusted (follow.lua). An error other than WRONGTYPE (-LOADING, -MASTERDOWN,
-- -BUSY, …), a lost connection and a missing answer mean "unknown", never "no route": nothing is stored. If a
-- push for a name arrives during its lookup, the answer is discarded, because its parts may be from before and after
-- the change. The lookup is sent again, and the requests that wait for it continue to wait.

local clock = require("signalbox.clock")
local held = require("signalbox.held")
local link = require("signalbox.link")
local record = require("signalbox.record")
local resp = require("signalbox.resp")
local routes = require("signalbox.routes")
local semaphore = require("ngx.semaphore")
local shared = require("signalbox.shared")

local null = resp.null
local now = clock.now
local match = string.match
local type = type

local _M = { trusted = false, open = 0 }

-- Maximum number of open lookups. A flood of invented names must not delay the names of applications.
local MAX_OPEN = 20000

local pending = {}

-- Called after each answer, so that a sweep can continue.
_M.answered = function() end

local function wake(entry)
    if entry.waiters > 0 then
        entry.ready:post(entry.waiters)
    end
end

local function failed(value, kind)
    if kind == "-" or kind == "!" then
        return match(value, "^WRONGTYPE") == nil
    end
    return value == nil
end

local begin

local function got_rest(value, kind, entry)
    local name = entry.name
    if entry.dirty and _M.trusted and begin(entry) then
        return
    end
    pending[name] = nil
    _M.open = _M.open - 1
    entry.failed = entry.failed or failed(value, kind) or entry.dirty or not _M.trusted
    if not entry.failed then
        -- WRONGTYPE: the key was written manually. The name exists, but has no usable data.
        local log_key, policy = value[1], value[2]
        local made = record.make(name, entry.addresses,
            type(log_key) == "string" and log_key or nil, type(policy) == "string" and policy or nil)
        if not made and entry.wrong then
            made = record.make(name, {}, "", nil)
        end
        routes.put(name, made)
        shared.put(name, made)
        held.arrived(name)
    end
    wake(entry)
    _M.answered(entry)
end

local function got_addresses(value, kind, entry)
    entry.failed = failed(value, kind)
    entry.wrong = type(value) ~= "table" or value == null
    entry.addresses = entry.wrong and {} or value
end

-- SMEMBERS instances:<name> and MGET logkey:<name> policy:<name> as one text, because a sweep sends it a million times.
local function question(name)
    local length = #name
    return "*2\r\n$8\r\nSMEMBERS\r\n$" .. length + 10 .. "\r\ninstances:" .. name
        .. "\r\n*3\r\n$4\r\nMGET\r\n$" .. length + 7 .. "\r\nlogkey:" .. name
        .. "\r\n$" .. length + 7 .. "\r\npolicy:" .. name .. "\r\n"
end

-- Returns false when there is no connection.
function begin(entry)
    entry.dirty = false
    if not link.send(question(entry.name), got_addresses, entry) then
        return false
    end
    link.expect(got_rest, entry)
    return true
end

-- The open lookup of `name`, sent now or earlier; nil if it cannot be sent.
function _M.ask(name)
    local entry = pending[name]
    if entry then
        return entry
    end
    if not _M.trusted or _M.open >= MAX_OPEN then
        return nil
    end
    entry = { name = name, waiters = 0 }
    if not begin(entry) then
        return nil
    end
    pending[name] = entry
    _M.open = _M.open + 1
    return entry
end

-- A push reported a change of `name`.
function _M.touch(name)
    local entry = pending[name]
    if entry then
        entry.dirty = true
    end
end

function _M.is_open(name)
    return pending[name] ~= nil
end

-- Looks up all `names` in parallel and waits for the answers, at most `timeout` seconds in total. Returns false if one
-- remains unknown.
function _M.wait(names, timeout)
    local entries = {}
    for i = 1, #names do
        local entry = _M.ask(names[i])
        if not entry then
            return false
        end
        entries[i] = entry
    end
    local deadline = now() + timeout
    for i = 1, #entries do
        local entry = entries[i]
        if pending[entry.name] == entry then
            entry.ready = entry.ready or semaphore.new()
            entry.waiters = entry.waiters + 1
            local left = deadline - now()
            local ok = left > 0 and entry.ready:wait(left)
            if not ok then
                entry.waiters = entry.waiters - 1
                return false
            end
        end
        if entry.failed then
            return false
        end
    end
    return true
end

return _M
