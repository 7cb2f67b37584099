-- The part of a policy that decides who may use the host or a path, and where requests are redirected.
--
--   {"access":{"allow":["10.0.0.0/8"], "deny":["10.1.0.0/16"],
--              "basic":{"realm":"Staging", "users":{"ann":"$6$…"}},
--              "forward":{"service":"auth.internal", "path":"/verify", "send":["X-Api-Key"], "copy":["X-User"],
--                         "cache_seconds":10, "timeout_ms":2000}},
--    "redirect":{"to":"https://www.example.org", "status":308, "keep_path":true}}

local hostname = require("signalbox.hostname")
local networks = require("signalbox.access.networks")

local concat, find, gsub, lower = table.concat, string.find, string.gsub, string.lower
local type, ipairs, pairs = type, ipairs, pairs

local _M = {}

local DEFAULT_SENT = { "Authorization", "Cookie", "Accept" }
local STATUSES = { [301] = true, [302] = true, [307] = true, [308] = true }

-- An unknown part could be one that denies access.
local PARTS = { allow = true, deny = true, basic = true, forward = true }

local function network_list(value, where, take)
    local given = take.object(value, where)
    if not given then
        return nil
    end
    local list = {}
    for _, text in ipairs(given) do
        local network = type(text) == "string" and networks.parse(text)
        if not network then
            return take.refuse(where, "networks such as 10.0.0.0/8")
        end
        list[#list + 1] = network
    end
    return #list > 0 and list or take.refuse(where, "a list of networks")
end

local function basic(value, take)
    local given = take.object(value, "access.basic")
    if not given then
        return nil
    end
    local users, count = {}, 0
    for name, hash in pairs(take.object(given.users, "access.basic.users") or {}) do
        if type(name) ~= "string" or type(hash) ~= "string" or not find(hash, "^%$%w+%$[%w./$=]+$") then
            return take.refuse("access.basic.users", "hashes of passwords")
        end
        users[name], count = hash, count + 1
    end
    if count == 0 then
        return take.refuse("access.basic.users", "at least one user")
    end
    local realm = given.realm == nil and "Restricted" or take.header_value(given.realm, "access.basic.realm") or ""
    return { users = users, challenge = 'Basic realm="' .. gsub(realm, '[\\"]', "") .. '", charset="UTF-8"' }
end

local function header_names(value, where, take)
    local names = {}
    for _, text in ipairs(take.object(value, where) or {}) do
        names[#names + 1] = take.name(text, where)
    end
    return names
end

-- Headers that describe the client's own connection and body. The call of forward authentication has others.
local FRAMING = { connection = true, ["content-length"] = true, expect = true, host = true, ["keep-alive"] = true,
    te = true, ["transfer-encoding"] = true, upgrade = true }

local function forward(value, take)
    local given = take.object(value, "access.forward")
    if not given then
        return nil
    end
    local service = take.text(given.service, "access.forward.service")
    if not service or not hostname.valid(service) then
        return take.refuse("access.forward.service", "a host name")
    end
    local path = given.path == nil and "/" or given.path
    if type(path) ~= "string" or not find(path, "^/[^%s%c]*$") then
        return take.refuse("access.forward.path", "a path")
    end
    local rules = {
        service = service,
        path = path,
        send = {},
        copy = header_names(given.copy, "access.forward.copy", take),
        cache_seconds = take.number(given.cache_seconds, "access.forward.cache_seconds", 0.1, 3600),
        timeout_ms = take.number(given.timeout_ms, "access.forward.timeout_ms", 1, 60000) or 2000,
    }
    for _, names in ipairs({ DEFAULT_SENT, header_names(given.send, "access.forward.send", take) }) do
        for _, name in ipairs(names) do
            if not FRAMING[lower(name)] then
                rules.send[#rules.send + 1] = name
            end
        end
    end
    -- Answers to other requests are not used.
    rules.id = service .. "\0" .. lower(concat(rules.copy, "\0"))
    return rules
end

-- The rules of `value`; `closed` is set if a part cannot be read. nil without a value.
function _M.access(value, where, take)
    local before = take.complaints()
    local given = take.object(value, where)
    if not given and take.complaints() == before then
        return nil
    end
    local rules = {}
    if given then
        for name in pairs(given) do
            if not PARTS[name] then
                take.refuse(where, "allow, deny, basic or forward")
            end
        end
        rules.allow = network_list(given.allow, where .. ".allow", take)
        rules.deny = network_list(given.deny, where .. ".deny", take)
        rules.basic = basic(given.basic, take)
        rules.forward = forward(given.forward, take)
    end
    rules.closed = take.complaints() > before
    return rules
end

-- { to = …, status = …, keep_path = bool }.
function _M.redirect(value, where, take)
    local given = take.object(value, where)
    if not given then
        return nil
    end
    local to = given.to
    local absolute = type(to) == "string" and find(to, "^https?://[^/%s%c]") and not find(to, "[%s%c]")
    if not absolute and not (type(to) == "string" and find(to, "^/[^/\\]?[^%s%c\\]*$") and not find(to, "^//")) then
        return take.refuse(where .. ".to", "a URL or a path")
    end
    local status = given.status == nil and 308 or given.status
    if not STATUSES[status] then
        return take.refuse(where .. ".status", "301, 302, 307 or 308")
    end
    local keeps = take.boolean(given.keep_path, where .. ".keep_path")
    return { to = to, status = status, keep_path = absolute and keeps }
end

function _M.read(given, take, rules)
    rules.access = _M.access(given.access, "access", take)
    rules.redirect = _M.redirect(given.redirect, "redirect", take)
    rules.guarded = rules.guarded or rules.access ~= nil or rules.redirect ~= nil
end

return _M
