-- The part of a policy that leads paths below the host to other hosts.
--
--   {"paths":[{"path":"/api", "match":"prefix"|"exact", "service":"orders.internal", "strip":true}, …]}

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
    local service = take.text(given.service, where .. ".service")
    if not service or not hostname.valid(service) then
        return take.refuse(where .. ".service", "a host name")
    end
    rule.service = service
    -- Whether the hot path can send the request.
    rule.light = not rule.strip
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
        end
    end
    if #list > 0 then
        rules.paths = paths.compile(list)
    end
end

return _M
