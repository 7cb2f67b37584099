-- What the table says of one name, in the two shapes the edge needs it in.
--
-- A plain record is a flat array, because there may be a million of them in every worker and the hot path walks it:
--   { cursor, log key, address, address, … }
-- Its strings are shared by all records that hold them. Anything the hot path cannot serve (no usable instance, or a
-- policy) is a special record with names for its parts:
--   { name = …, addresses = {…}, log_key = …, policy = text, rules = {…} (policy.lua), and candidates.lua's parts }
-- `false` is a name that does not exist.

local address = require("signalbox.address")
local candidates = require("signalbox.candidates")
local rules = require("signalbox.policy")
local table_new = require("table.new")

local random, sort = math.random, table.sort
local find, gmatch, gsub, sub, match = string.find, string.gmatch, string.gsub, string.sub, string.match
local concat, type, tostring = table.concat, type, tostring
local log, WARN = ngx.log, ngx.WARN

local _M = {}

-- Places of a plain record.
_M.CURSOR = 1
_M.LOG_KEY = 2
_M.FIRST = 3

local MAX_LOG_KEY = 128

-- What the log gets when nobody said anything else; the statistics know it as unrouted.
local NO_KEY = "null"

-- Of a record that is special for having no instance.
local NO_RULES = rules.read("", "{}")

local function usable(addresses)
    local list, n = {}, 0
    for i = 1, #addresses do
        local one = addresses[i]
        if type(one) == "string" and address.valid(one) then
            n = n + 1
            list[n] = one
        else
            log(WARN, "an instance address in the route table is neither ip:port nor unix:/path, left out: ",
                sub(tostring(one), 1, 80))
        end
    end
    -- Redis gives a set in no order; two workers that agree on one can be compared and tested.
    sort(list)
    return list
end

local function plain(list, log_key)
    local n = #list
    local record = table_new(n + 2, 0)
    -- A random start, or the workers of a router, and all routers after a change, would hit the same instance together.
    record[1] = random(n)
    record[2] = log_key
    for i = 1, n do
        record[i + 2] = list[i]
    end
    return record
end

-- addresses: array of strings as the set has them. log_key, policy: string or nil. nil, nil and nothing in the set is
-- a name that does not exist.
function _M.make(name, addresses, log_key, policy)
    if #addresses == 0 and not log_key and not policy then
        return false
    end
    local list = usable(addresses)
    if not log_key or log_key == "" then
        log_key = NO_KEY
    end
    log_key = sub(log_key, 1, MAX_LOG_KEY)
    if #list > 0 and not policy then
        return plain(list, log_key)
    end
    local record = { name = name, addresses = list, log_key = log_key, policy = policy }
    record.rules = policy and rules.read(name, policy) or NO_RULES
    candidates.fill(record)
    return record
end

function _M.is_plain(record)
    return record[1] ~= nil
end

-- One line without tabs or newlines of its own inside a field: the shared dictionary and the snapshot hold these.
local ESCAPED = { ["\\"] = "\\\\", ["\t"] = "\\t", ["\n"] = "\\n", ["\r"] = "\\r" }
local PLAIN = { ["\\"] = "\\", t = "\t", n = "\n", r = "\r" }

local function escape(text)
    return find(text, "[\\\t\n\r]") and gsub(text, "[\\\t\n\r]", ESCAPED) or text
end

local function unescape(text)
    return find(text, "\\", 1, true) and gsub(text, "\\(.)", PLAIN) or text
end

_M.escape, _M.unescape = escape, unescape

-- nil for a record that is not worth keeping: nothing can be routed with it.
function _M.encode(record)
    if _M.is_plain(record) then
        return escape(record[2]) .. "\t\t" .. concat(record, " ", 3)
    elseif #record.addresses == 0 then
        return nil
    end
    return escape(record.log_key) .. "\t" .. escape(record.policy or "") .. "\t" .. concat(record.addresses, " ")
end

-- nil when the text is none of ours.
function _M.decode(name, text)
    local log_key, policy, rest = match(text, "^([^\t]*)\t([^\t]*)\t([^\t]*)$")
    if not log_key then
        return nil
    end
    local addresses, n = {}, 0
    for one in gmatch(rest, "[^ ]+") do
        n = n + 1
        addresses[n] = one
    end
    if n == 0 then
        return nil
    end
    return _M.make(name, addresses, unescape(log_key), policy ~= "" and unescape(policy) or nil)
end

return _M
