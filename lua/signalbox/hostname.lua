-- Lists the names of the table that may serve a host, most specific first: the name itself, its wildcards from the
-- longest on, and the catch-all. The list has at most ten names, so that a host name with a hundred labels (the parts
-- between the dots) costs no more than one with nine.

local find, sub = string.find, string.sub
local byte = string.byte

local _M = {}

local MAX_CANDIDATES = 10
local MAX_LENGTH = 253 -- of a name on the wire (RFC 1035); the table has no longer ones

-- nginx converts $host to lower case, and removes the port and a trailing dot. The rest may still be a name that cannot
-- be registered: too long, with an empty first label (which no wildcard matches), or with bytes with which a client
-- could read arbitrary keys ("*.example.org").
function _M.valid(host)
    if #host > MAX_LENGTH or byte(host, 1) == 46 then
        return false
    end
    -- An IPv6 literal in brackets is a valid Host header.
    return not find(host, "[^%w%.%-_%[%]:]")
end

-- Whether a name of the table, such as one from a push, can serve any host.
function _M.valid_name(name)
    if name == "*" then
        return true
    end
    return #name > 0 and _M.valid(sub(name, 1, 2) == "*." and sub(name, 3) or name)
end

-- Fills `list` with the candidates of `host` and returns their number. The caller owns the list, so that only the names
-- themselves are allocated.
function _M.candidates(host, list)
    list[1] = host
    local n = 1
    -- "*.example.org" is not a candidate for "example.org", because a wildcard matches at least one more label. An
    -- IP address has no labels.
    if byte(host, 1) ~= 91 and not find(host, "^[%d%.]+$") then
        local dot = find(host, ".", 1, true)
        while dot and n < MAX_CANDIDATES - 1 do
            local rest = sub(host, dot)
            if #rest > 1 then
                n = n + 1
                list[n] = "*" .. rest
            end
            dot = find(host, ".", dot + 1, true)
        end
    end
    n = n + 1
    list[n] = "*"
    return n
end

function _M.is_wildcard(name)
    return byte(name, 1) == 42
end

return _M
