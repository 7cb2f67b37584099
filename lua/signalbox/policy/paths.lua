-- The part of a policy with rules for paths below the host.
--
--   {"paths":[{"path":"/api", "match":"prefix"|"exact", "service":"orders.internal", "strip":true,
--              "access":{…}, "redirect":{…}}, …]}

local access = require("signalbox.policy.access")
local hostname = require("signalbox.hostname")
local paths = require("signalbox.paths")

local find, sub, type, ipairs = string.find, string.sub, type, ipairs

local _M = {}

local MAX_RULES, MAX_PATH = 256, 1024

local function path_of(value, where, take)
    if type(value) ~= "string" or #value > MAX_PATH or sub(value, 1, 1) ~= "/"
        or find(value, "[%z\1-\31\127?#%%;\\]") or find(value, "//", 1, true) or find(value .. "/", "/%.%.?/")
    then
        return take.refuse(where, "a normalized path")
    end
    return value
end

local function one(given, where, take)
    local path = path_of(given.path, where .. ".path", take)
    if not path then
        return nil
    elseif given.match ~= nil and given.match ~= "prefix" and given.match ~= "exact" then
        return take.refuse(where .. ".match", "prefix or exact")
    end
    local rule = { path = path, exact = given.match == "exact", strip = take.boolean(given.strip, where .. ".strip") }
    -- It replaces that of the host.
    rule.access = access.access(given.access, where .. ".access", take)
    rule.redirect = access.redirect(given.redirect, where .. ".redirect", take)
    local service = take.text(given.service, where .. ".service")
    if service and hostname.valid(service) then
        rule.service = service
    elseif service or not (rule.access or rule.redirect or rule.strip) then
        take.refuse(where .. ".service", "a host name")
        if not rule.access then
            return nil
        end
        rule.access.closed = true
    end
    -- Whether the hot path can send the request.
    rule.light = rule.service ~= nil and not (rule.strip or rule.access or rule.redirect)
    return rule
end

function _M.read(given, take, rules)
    local list = {}
    for at, value in ipairs(take.object(given.paths, "paths") or {}) do
        if at > MAX_RULES then
            take.refuse("paths", "an array of at most " .. MAX_RULES .. " rules")
            break
        end
        local where = "paths." .. at
        local rule = take.object(value, where) and one(value, where, take)
        if rule then
            list[#list + 1] = rule
        elseif type(value) == "table" and value.access ~= nil then
            -- It is unknown which path the rule protects.
            rules.access, rules.guarded = { closed = true }, true
        end
    end
    if #list > 0 then
        rules.paths = paths.compile(list)
    end
end

return _M
