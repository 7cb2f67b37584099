-- Which keys of the table may answer for a host, most specific first: the name itself, its wildcards from the longest,
-- and the catch-all. At most ten, so that a name of a hundred labels costs no more than one of nine.

local find, sub = string.find, string.sub
local byte = string.byte

local _M = {}

local MAX_CANDIDATES = 10
local MAX_LENGTH = 253 -- of a name on the wire (RFC 1035); nothing longer can be in the table

-- nginx lower-cases $host and strips port and trailing dot. What is left may still be no name anyone could register:
-- too long, or with bytes that would let a client of the edge ask for keys of its own making ("*.example.org").
function _M.valid(host)
    if #host > MAX_LENGTH then
        return false
    end
    -- An IPv6 literal in brackets is a fine Host header.
    return not find(host, "[^%w%.%-_%[%]:]")
end

-- Whether a key of the table, as a push names it, is one that some host could ever lead to.
function _M.valid_name(name)
    if name == "*" then
        return true
    end
    return #name > 0 and _M.valid(sub(name, 1, 2) == "*." and sub(name, 3) or name)
end

-- Fills `list` with the candidates of `host` and returns their number. The list is the caller's, so nothing is
-- allocated but the names themselves.
function _M.candidates(host, list)
    list[1] = host
    local n = 1
    -- "*.example.org" is not asked for "example.org": a wildcard stands for at least one label more. An address is
    -- no name with labels.
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
