-- The route cache of one worker: the record of each name in the table, and the hosts that a wildcard serves (wild). It
-- is only memory; follow.lua and lookups.lua decide what is stored and when it is trusted.
--
--   plain     name → plain record       served by the hot path; limited only by the size of the table
--   special   name → special record     no usable instance, or a policy
--   wildcards name → either             "*.example.org" and "*", separate so that no Host header matches one
--   absent    name → true               names that were asked for and do not exist; bounded
--   wild      host → record             hosts that a wildcard serves; bounded, because any client may invent them
--
-- A push for an exact name drops its record, absence and wild entry. A push for a wildcard drops its record and all of
-- `wild`, which is filled again from records without Redis. So a change costs the same with ten hosts and with a
-- million.
--
-- After a time without pushes (a new connection, a flushed server), every record may be outdated. `suspect` takes over
-- all records in one assignment. They are still served until they are read again in the background: a request for a
-- host that is not in the fresh tables goes through @full, which uses the suspect record.

local bounded = require("signalbox.bounded")
local hostname = require("signalbox.hostname")
local record = require("signalbox.record")

local next, pairs = next, pairs
local is_wildcard, candidates = hostname.is_wildcard, hostname.candidates

local MAX_ABSENT = 16384
local MAX_WILD = 65536

local _M = {
    plain = {},
    special = {},
    wildcards = {},
    wild = bounded.new(MAX_WILD),
    absent = bounded.new(MAX_ABSENT),
    hosts = 0,
    suspects = 0,
}

local suspect = { plain = {}, special = {}, wildcards = {} }

-- Incremented when `suspect` is replaced; an iteration over it must start again then.
_M.sweep = 0

local function table_of(tables, name, value)
    if is_wildcard(name) then
        return tables.wildcards
    end
    return record.is_plain(value) and tables.plain or tables.special
end

local function take_from(tables, name)
    local where = is_wildcard(name) and tables.wildcards or tables.plain
    local value = where[name]
    if value == nil then
        where = tables.special
        value = where[name]
    end
    if value ~= nil then
        where[name] = nil
    end
    return value
end

-- A trusted record; false for a name that does not exist; nil if it is unknown. With nil, the second value is the
-- suspect record, if there is one.
local function known(name)
    local value
    if is_wildcard(name) then
        value = _M.wildcards[name]
    else
        value = _M.plain[name] or _M.special[name]
    end
    if value ~= nil then
        return value
    elseif _M.absent:get(name) then
        return false
    end
    if _M.suspects == 0 then
        return nil
    elseif is_wildcard(name) then
        return nil, suspect.wildcards[name]
    end
    return nil, suspect.plain[name] or suspect.special[name]
end
_M.known = known

-- Stores Redis's answer about `name`. value: a record, or false.
function _M.put(name, value)
    _M.drop(name)
    if value == false then
        _M.absent:set(name, true)
        return
    end
    table_of(_M, name, value)[name] = value
    _M.hosts = _M.hosts + 1
end

-- Removes `name` from the trusted and the suspect records. Returns true if there was a record of it.
function _M.drop(name)
    local fresh = take_from(_M, name)
    if fresh ~= nil then
        _M.hosts = _M.hosts - 1
    end
    local old
    if _M.suspects > 0 then
        old = take_from(suspect, name)
        if old ~= nil then
            _M.suspects = _M.suspects - 1
        end
    end
    _M.absent:delete(name)
    if is_wildcard(name) then
        _M.wild:clear()
    else
        _M.wild:delete(name)
    end
    return fresh ~= nil or old ~= nil
end

-- Remembers that a wildcard's record serves `host`, so that the hot path finds it there. A record that is not plain is
-- left out, because the hot path cannot use it.
function _M.put_wild(host, value)
    if record.is_plain(value) then
        _M.wild:set(host, value)
    end
end

local names = {}

-- Finds the record that serves `host`: a record; false if no name of the table matches; nil if one of the candidates is
-- unknown. The second value is the name that matched. With nil, `ask` (a list) contains the unknown names, and the
-- second value is the suspect record that would serve the host, if there is one.
function _M.find(host, ask)
    local n = candidates(host, names)
    local asked, stand_in, stand_in_name = 0, nil, nil
    for i = 1, n do
        local name = names[i]
        local value, before = known(name)
        if value == nil then
            asked = asked + 1
            ask[asked] = name
            stand_in = stand_in or before
            if before and not stand_in_name then
                stand_in_name = name
            end
        elseif value then
            if asked == 0 then
                return value, name
            end
            break
        end
    end
    -- All entries of an earlier call are removed, not only the next one, because a later entry would be taken for a
    -- name.
    for i = #ask, asked + 1, -1 do
        ask[i] = nil
    end
    if asked == 0 then
        return false
    end
    -- A wildcard's suspect record does not serve a host whose own name is unknown.
    if stand_in and stand_in_name == ask[1] then
        return nil, stand_in, stand_in_name
    end
    return nil
end

-- Makes every record suspect: still served, but looked up again. Names that do not exist are dropped, because they
-- serve no request.
function _M.suspect_all()
    if _M.suspects > 0 then
        -- A sweep was interrupted: the suspects that it had not reached are added to the new ones.
        for kind, rest in pairs(suspect) do
            local into = _M[kind]
            for name, value in pairs(rest) do
                into[name] = value
            end
        end
        _M.hosts = _M.hosts + _M.suspects
    end
    suspect = { plain = _M.plain, special = _M.special, wildcards = _M.wildcards }
    _M.suspects = _M.hosts
    _M.plain, _M.special, _M.wildcards, _M.hosts = {}, {}, {}, 0
    _M.absent:clear()
    _M.wild:clear()
    _M.sweep = _M.sweep + 1
end

-- The next suspect name after `last` of the same kind, or nil. Names may be dropped during the iteration; suspects are
-- never added.
function _M.next_suspect(kind, last)
    return (next(suspect[kind], last))
end

return _M
