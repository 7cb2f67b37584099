-- Rules for paths below a host: which rule applies to a request, and what its instance gets.
--
-- A rule must not be checked for one path while the instance reads another. So there is one path: nginx's normalized
-- $uri (percent-encoding decoded, slashes merged, dot segments resolved). If the path of a request is already in
-- this form, it is sent unchanged. Any other request is sent with the normalized path, and is rejected if applications
-- disagree about what it means. The decision is made once per request; retries use it again ($edge_service).
--
-- compile() turns a list of rules { path = …, exact = bool, … } into:
--   { exact = { path → rule }, prefixes = { path → rule }, root = rule,
--     lengths = { lengths of prefixes, longest first } }

local base = require("resty.core.base")
local ffi = require("ffi")

require("resty.core.var") -- declares ngx_http_lua_ffi_var_get

local C, ffi_string = ffi.C, ffi.string
local byte, find, gsub, sub, sort = string.byte, string.find, string.gsub, string.sub, table.sort
local pairs = pairs

ffi.cdef("int memcmp(const void *a, const void *b, size_t size);")

local _M = {}

local SLASH, QUESTION = byte("/"), byte("?")

-- Buffers for one read. They can be shared, because nothing yields in between.
local value, length = ffi.new("unsigned char *[1]"), ffi.new("size_t[1]")
local lowcase, err_out = ffi.new("unsigned char[16]"), base.get_errmsg_ptr()

local function variable(request, name)
    return C.ngx_http_lua_ffi_var_get(request, name, #name, lowcase, 0, value, length, err_out) == 0
end

function _M.compile(rules)
    local compiled = { exact = {}, prefixes = {}, lengths = {} }
    local seen = {}
    for i = 1, #rules do
        local rule = rules[i]
        if rule.exact then
            compiled.exact[rule.path] = rule
        elseif rule.path == "/" then
            compiled.root = rule
        else
            compiled.prefixes[rule.path] = rule
            seen[#rule.path] = true
        end
    end
    for size in pairs(seen) do
        compiled.lengths[#compiled.lengths + 1] = size
    end
    sort(compiled.lengths, function(a, b)
        return a > b
    end)
    return compiled
end

-- The rule for a normalized path: the exact one, otherwise that of the longest prefix. nil when there is none.
-- A prefix ends at a slash: /api is the prefix of /api and /api/x, not of /apix.
function _M.find(compiled, path)
    local rule = compiled.exact[path]
    if rule then
        return rule
    end
    local size, lengths, prefixes = #path, compiled.lengths, compiled.prefixes
    for i = 1, #lengths do
        local n = lengths[i]
        if n == size then
            rule = prefixes[path]
        elseif n < size and byte(path, n + 1) == SLASH then
            rule = prefixes[sub(path, 1, n)]
        end
        if rule then
            return rule
        end
    end
    return compiled.root
end

-- The path of a request that wrote it in the normalized form, so that it can be sent as it is; nil for others. For the
-- hot path: it allocates one string.
function _M.plain(request)
    if not variable(request, "uri") then
        return nil
    end
    local path = ffi_string(value[0], length[0])
    if not variable(request, "request_uri") then
        return nil
    end
    local size, sent, sent_size = #path, value[0], tonumber(length[0])
    if sent_size < size or (sent_size > size and sent[size] ~= QUESTION) or C.memcmp(sent, path, size) ~= 0
        or find(path, ";", 1, true) or find(path, "\\", 1, true)
    then
        return nil
    end
    return path
end

-- The normalized path with which a request is matched; nil if applications may interpret it differently. Some drop
-- parameters of segments (";x=1"), and resolve dots and slashes after that.
function _M.matched(path)
    if find(path, "[%z\1-\31\127\\]") then
        return nil
    elseif not find(path, ";", 1, true) then
        return path
    end
    local bare = gsub(path, ";[^/]*", "")
    if find(bare, "//", 1, true) or find(bare .. "/", "/%.%.?/") then
        return nil
    end
    return bare
end

-- The path that the instance receives instead of `path`, which `rule` matches; nil if the removed part has parameters.
function _M.stripped(rule, path)
    if rule.exact then
        return "/"
    elseif sub(path, 1, #rule.path) ~= rule.path then
        return nil
    end
    local rest = sub(path, #rule.path + 1)
    if rest == "" then
        return "/"
    end
    return byte(rest) == SLASH and rest or nil
end

return _M
