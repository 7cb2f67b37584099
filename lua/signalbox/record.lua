-- The route table's data for one name. This is the only module that knows that a record has two shapes:
--
-- A plain record is a flat array, because every worker may hold a million of them and the hot path reads them:
--   { cursor, log key, address, address, … }
-- Records share the strings they hold. A name that the hot path cannot serve from an array (it has a policy, or no
-- usable instance) has a special record with named parts:
--   { name = …, addresses = {…}, log_key = …, policy = text, rules = {…} (policy.lua), and those of candidates.lua }
-- `false` is a name that does not exist.
--
-- Other modules use the functions below. A module may read the named parts of a record whose `rules` it has, because
-- only a special record has rules.

local address = require("signalbox.address")
local candidates = require("signalbox.candidates")
local policy_rules = require("signalbox.policy")
local table_new = require("table.new")

local random, sort = math.random, table.sort
local find, gmatch, gsub, sub, match = string.find, string.gmatch, string.gsub, string.sub, string.match
local concat, type, tostring = table.concat, type, tostring
local log, WARN = ngx.log, ngx.WARN

local _M = {}

-- Positions in a plain record.
local CURSOR, LOG_KEY, FIRST = 1, 2, 3

local MAX_LOG_KEY = 128

-- The log key of a name that has none; the statistics count it as unrouted.
local NO_KEY = "null"

-- The rules of a record that is special because it has no instance.
local NO_RULES = policy_rules.read("", "{}")

-- ── making ─────────────────────────────────────────────────────────────────────────────────────────────────────────

local function usable(addresses)
    local list, n = {}, 0
    for i = 1, #addresses do
        local one = addresses[i]
        if type(one) == "string" and address.valid(one) and not address.is_reserved(one) then
            n = n + 1
            list[n] = one
        elseif type(one) == "string" and address.is_reserved(one) then
            log(WARN, "instance address in the route table ignored, it belongs to Signalbox itself: ", sub(one, 1, 80))
        else
            log(WARN, "instance address in the route table ignored, it must be ip:port or unix:/path: ",
                sub(tostring(one), 1, 80))
        end
    end
    -- Redis returns a set in any order. Sorted, the records of two workers can be compared.
    sort(list)
    return list
end

local function plain(list, log_key)
    local n = #list
    local record = table_new(n + 2, 0)
    -- The start is random. Otherwise the workers of a router, and all routers after a change, would send their next
    -- requests to the same instance.
    record[CURSOR] = random(n)
    record[LOG_KEY] = log_key
    for i = 1, n do
        record[FIRST - 1 + i] = list[i]
    end
    return record
end

-- addresses: array of strings as in the Redis set. log_key, policy: string or nil. An empty set without log key and
-- policy is a name that does not exist.
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
    record.rules = policy and policy_rules.read(name, policy) or NO_RULES
    candidates.fill(record)
    return record
end

-- ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Which of the tables in routes.lua holds the record.
local function is_plain(record)
    return record[CURSOR] ~= nil
end
_M.is_plain = is_plain

-- The rules of the record's policy; nil for a plain record.
function _M.rules(record)
    return record.rules
end

-- The log key of requests to `instance`: its version type. Without `instance`, that of the whole name.
function _M.log_key(record, instance)
    local rules = record.rules
    if not rules then
        return record[LOG_KEY]
    end
    return instance and rules.log_keys[instance] or record.log_key
end

-- How many requests this worker has routed with the record.
function _M.served(record)
    return record.rules and record.served or record[CURSOR]
end

-- The next three functions return a list and the positions of the first and last address in it.

-- All addresses in the table.
function _M.addresses(record)
    if is_plain(record) then
        return record, FIRST, #record
    end
    return record.addresses, 1, #record.addresses
end

-- The addresses that are not draining.
function _M.usable(record)
    if is_plain(record) then
        return record, FIRST, #record
    end
    return record.usable, 1, #record.usable
end

-- The addresses that may get new requests.
function _M.candidates(record)
    if is_plain(record) then
        return record, FIRST, #record
    end
    return record.candidates, 1, #record.candidates
end

-- How many instances may get new requests.
function _M.count(record)
    return is_plain(record) and #record - FIRST + 1 or #record.candidates
end

-- ── plain records only, for the hot path ───────────────────────────────────────────────────────────────────────────

-- The next address, round robin. The cursor never goes back, because it also counts the requests that this worker has
-- routed with the record: outliers.lua compares failures with it, and budget.lua retries, at no cost per request.
function _M.plain_next(record)
    local at = record[CURSOR] + 1
    record[CURSOR] = at
    return record[FIRST + at % (#record - FIRST + 1)]
end

function _M.plain_has_several(record)
    return #record > FIRST
end

function _M.plain_log_key(record)
    return record[LOG_KEY]
end

-- ── as text ────────────────────────────────────────────────────────────────────────────────────────────────────────

-- One line with no tab or newline inside a field. The shared dictionary and the snapshot store records in this form.
local ESCAPED = { ["\\"] = "\\\\", ["\t"] = "\\t", ["\n"] = "\\n", ["\r"] = "\\r" }
local PLAIN = { ["\\"] = "\\", t = "\t", n = "\n", r = "\r" }

local function escape(text)
    return find(text, "[\\\t\n\r]") and gsub(text, "[\\\t\n\r]", ESCAPED) or text
end

local function unescape(text)
    return find(text, "\\", 1, true) and gsub(text, "\\(.)", PLAIN) or text
end

_M.escape, _M.unescape = escape, unescape

-- nil for a record that cannot route any request, so that it is not stored: it has no addresses, paths or redirect.
function _M.encode(record)
    local list, from, to = _M.addresses(record)
    if to < from and not (record.rules and (record.rules.paths or record.rules.redirect)) then
        return nil
    end
    return escape(_M.log_key(record)) .. "\t" .. escape(record.policy or "") .. "\t" .. concat(list, " ", from, to)
end

-- The text of encode() without the secrets in its policy. Of another text, nothing is shown.
function _M.without_secrets(text)
    local log_key, policy, rest = match(text, "^([^\t]*)\t([^\t]*)\t([^\t]*)$")
    if not log_key then
        return policy_rules.HIDDEN
    elseif policy == "" then
        return text
    end
    return log_key .. "\t" .. escape(policy_rules.without_secrets(unescape(policy))) .. "\t" .. rest
end

-- nil when encode() cannot have written the text.
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
    if n == 0 and policy == "" then
        return nil
    end
    return _M.make(name, addresses, unescape(log_key), policy ~= "" and unescape(policy) or nil)
end

return _M
