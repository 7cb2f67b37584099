-- The policy of a host: the JSON of `policy:<hostname>`. It is read once, when the record is made, into a table that
-- requests can use without checking types again.
--
-- The table may be written by hand, so every value is checked. An invalid part is ignored with a warning, and the rest
-- routes the host. Unknown parts are ignored, because a newer pacemaker may write them.
--
--   balance.lua   which instance gets a request: weights, algorithm, shares, stickiness, slow start
--   failure.lua   what happens when an instance fails: retries, ejection, holding
--   guards.lua    which requests pass: limits, methods, sizes, headers, maintenance, https
--   access.lua    who may use the host, and redirects
--   paths.lua     which paths lead to other hosts
--
-- Each part has read(given, take, rules), which adds its rules. `take` holds the readers below.

local json = require("signalbox.json")

local find, format, lower, gsub, sub = string.find, string.format, string.lower, string.gsub, string.sub
local floor = math.floor
local type, pairs, tostring, ipairs, setmetatable = type, pairs, tostring, ipairs, setmetatable
local log, WARN = ngx.log, ngx.WARN

local _M = {}

local MAX_NAME, MAX_VALUE = 128, 8192

-- ── readers ────────────────────────────────────────────────────────────────────────────────────────────────────────
-- Each takes a value, and its position in the policy for the warning. It returns nil for a missing or invalid value.

local take = {}

-- Set during one read; nothing yields in between.
local complaints = {}

local function refuse(where, wanted)
    complaints[#complaints + 1] = where .. " must be " .. wanted
end
take.refuse = refuse

-- The number of values that were rejected so far.
function take.complaints()
    return #complaints
end

local function absent(value)
    return value == nil or value == json.null
end

function take.number(value, where, least, most)
    if absent(value) then
        return nil
    elseif type(value) ~= "number" or value ~= value or value < least or value > most then
        return refuse(where, format("a number from %.15g to %.15g", least, most))
    end
    return value
end

function take.integer(value, where, least, most)
    local number = take.number(value, where, least, most)
    if number and floor(number) ~= number then
        return refuse(where, "a whole number")
    end
    return number
end

function take.boolean(value, where)
    if not absent(value) and type(value) ~= "boolean" then
        return refuse(where, "true or false")
    end
    return value == true
end

function take.object(value, where)
    if not absent(value) then
        return type(value) == "table" and value or refuse(where, "an object")
    end
end

function take.text(value, where)
    if not absent(value) then
        return type(value) == "string" and #value <= MAX_VALUE and value
            or refuse(where, "a text of at most " .. MAX_VALUE .. " bytes")
    end
end

-- The name of a header or cookie. RFC 9110 allows more, but nginx's variables do not, and applications do not need it.
function take.name(value, where)
    if not absent(value) then
        return type(value) == "string" and #value <= MAX_NAME and find(value, "^[%w_%-]+$") and value
            or refuse(where, "a name of letters, digits, - and _")
    end
end

-- The value of a header. A control character could begin another header.
function take.header_value(value, where)
    if type(value) ~= "string" or #value > MAX_VALUE or find(value, "[%z\1-\8\10-\31\127]") then
        return refuse(where, "a header's value")
    end
    return value
end

-- { text = item }, without the items that `item` (a reader) rejects.
function take.map(value, where, item, ...)
    local map, given = {}, take.object(value, where)
    if given then
        for name, one in pairs(given) do
            if type(name) == "string" then
                map[name] = item(one, where .. "." .. sub(name, 1, 80), ...)
            end
        end
    end
    return map
end

-- The set of the texts in an array.
function take.set(value, where)
    local set, given = {}, take.object(value, where)
    if given then
        for _, one in pairs(given) do
            if type(one) == "string" then
                set[one] = true
            else
                refuse(where, "an array of texts only")
            end
        end
    end
    return set
end

-- The nginx variable of a request header, or of a cookie.
function take.header_variable(name)
    return name and "http_" .. gsub(lower(name), "-", "_")
end

function take.cookie_variable(name)
    -- nginx looks up cookies by their exact name, and allows only these characters in a variable.
    return name and "cookie_" .. name
end

function take.log_key(value, where)
    if type(value) == "string" or type(value) == "number" then
        return tostring(value)
    end
    return refuse(where, "a version type ID")
end

-- ── the whole ──────────────────────────────────────────────────────────────────────────────────────────────────────

local PARTS = { require("signalbox.policy.balance"), require("signalbox.policy.failure"),
    require("signalbox.policy.guards"), require("signalbox.policy.access"), require("signalbox.policy.paths") }

local function warn(name)
    log(WARN, "invalid parts of the policy of ", name, " are ignored: ", complaints[1],
        #complaints > 1 and format(" (and %d more)", #complaints - 1) or "")
end

-- text: the JSON. Returns a table of rules, even for invalid JSON.
function _M.read(name, text)
    local given, err = json.decode(text)
    if type(given) ~= "table" then
        -- The instances alone are sufficient for routing. An unreadable policy must not make the host unavailable,
        -- unless it may have protected the host.
        log(WARN, "the policy of ", name, " is not a JSON object and is ignored: ", err or "not an object")
        given = find(text, '"access"', 1, true) and { access = false } or {}
    end
    complaints = {}
    local rules = {}
    for _, part in ipairs(PARTS) do
        part.read(given, take, rules)
    end
    if #complaints > 0 then
        warn(name)
    end
    return rules
end

-- ── without secrets ────────────────────────────────────────────────────────────────────────────────────────────────

local HIDDEN = "(hidden)"
_M.HIDDEN = HIDDEN

-- What an operator without a token may see of a policy: not the hashes of passwords, the values of headers for
-- instances, and the value that passes maintenance. The API hides the same
-- (crates/admin-api/src/api/routing/hosts.rs). `true` shows a value, a table shows the listed fields of an object and
-- the names of others, `each` is for the items of an array. Everything else is hidden, because a newer pacemaker may
-- write it.
local ACCESS = { allow = true, deny = true, forward = true, basic = { realm = true, users = {} } }
local SHOWN = {}
for _, part in ipairs(PARTS) do
    -- A part asks for each field that it knows.
    part.read(setmetatable({}, { __index = function(_, field) SHOWN[field] = true end }), take, {})
end
SHOWN.access = ACCESS
SHOWN.headers = { request = { remove = true, set = {} }, response = true }
SHOWN.maintenance = { status = true, body = true, content_type = true, retry_after = true, since_ms = true, by = true,
    except_header = { name = true } }
SHOWN.paths = { each = { path = true, match = true, strip = true, service = true, redirect = true, access = ACCESS } }

local function hide(value, shown)
    if shown == true then
        return value
    elseif not shown or type(value) ~= "table" then
        return HIDDEN
    end
    for name, one in pairs(value) do
        value[name] = hide(one, type(name) == "number" and shown.each or shown[name])
    end
    return value
end

-- The JSON of a policy without its secrets.
function _M.without_secrets(text)
    return json.encode(hide(json.decode(text), SHOWN)) or json.string(HIDDEN)
end

return _M
