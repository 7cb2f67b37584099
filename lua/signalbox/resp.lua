-- RESP3, the protocol of Redis: a reader that takes bytes from a source, and an encoder of commands.
--
-- The packaged clients are not used because they drop buffered bytes when a read times out in the middle of a frame;
-- from then on every reply is assigned to the wrong command. Here the source decides what a timeout means (the link
-- sends a PING and continues to read), and an incomplete frame waits for its rest.
--
-- reader:next() returns value, kind. The kind is the frame's first byte: ">" is a push, "-" or "!" an error whose
-- value is its text. Nil is resp.null, so arrays have no holes. Maps are flat arrays of key, value, key, value.
-- nil, message: the source ended, or the peer violates the protocol; the connection is unusable.

local byte, find, sub = string.byte, string.find, string.sub
local concat = table.concat
local tonumber = tonumber
local setmetatable, tostring = setmetatable, tostring

local _M = { null = setmetatable({}, { __tostring = function() return "null" end }) }

-- Limits of memory and recursion against a hostile or broken peer.
local MAX_BULK = 64 * 1024 * 1024
local MAX_ITEMS = 1024 * 1024
local MAX_DEPTH = 8
local MAX_LINE = 64 * 1024

local Reader = {}
Reader.__index = Reader

-- source(): returns bytes, or nil and why there are no more.
function _M.reader(source)
    return setmetatable({ source = source, buffer = "", at = 1 }, Reader)
end

function Reader:fill()
    local more, err = self.source()
    if not more then
        return nil, err
    end
    self.buffer = sub(self.buffer, self.at) .. more
    self.at = 1
    return true
end

function Reader:line()
    local from = self.at
    while true do
        local stop = find(self.buffer, "\r\n", from, true)
        if stop then
            local line = sub(self.buffer, self.at, stop - 1)
            self.at = stop + 2
            return line
        end
        local held = #self.buffer - self.at + 1
        if held > MAX_LINE then
            return nil, "protocol: line too long"
        end
        local ok, err = self:fill()
        if not ok then
            return nil, err
        end
        -- The buffer now starts at `at`; its last byte may have been a \r.
        from = held > 0 and held or 1
    end
end

function Reader:bulk(length)
    local need = length + 2
    if #self.buffer - self.at + 1 < need then
        -- The value is collected in pieces: joining the buffer at each of a thousand reads would copy a large value a
        -- thousand times.
        local pieces, n, held = { sub(self.buffer, self.at) }, 1, #self.buffer - self.at + 1
        while held < need do
            local more, err = self.source()
            if not more then
                return nil, err
            end
            n = n + 1
            pieces[n] = more
            held = held + #more
        end
        self.buffer = concat(pieces)
        self.at = 1
    end
    local stop = self.at + length
    if sub(self.buffer, stop, stop + 1) ~= "\r\n" then
        return nil, "protocol: bulk without its end"
    end
    local value = sub(self.buffer, self.at, stop - 1)
    self.at = stop + 2
    return value
end

-- The lengths of nearly all frames. LuaJIT compiles a table access, but not a pattern match.
local SHORT = {}
for n = 0, 255 do
    SHORT[tostring(n)] = n
end

-- A length as Redis writes it: digits only. tonumber alone would accept 0x10, 1e9 or nan.
local function length_of(text, limit)
    local short = SHORT[text]
    if short then
        return short
    elseif not find(text, "^%d+$") then
        return nil, "protocol: bad length"
    end
    local n = tonumber(text)
    if n > limit then
        return nil, "protocol: length over limit"
    end
    return n
end

function Reader:items(count, depth)
    if depth > MAX_DEPTH then
        return nil, "protocol: nested too deeply"
    end
    local list = {}
    for i = 1, count do
        local value, err = self:value(depth)
        if value == nil then
            return nil, err
        end
        list[i] = value
    end
    return list
end

local BULKS = { ["$"] = true, ["!"] = true, ["="] = true }
local LISTS = { ["*"] = 1, ["~"] = 1, [">"] = 1, ["%"] = 2 }
local NUMBERS = { [":"] = true, [","] = true, ["("] = true }

function Reader:value(depth)
    local line, err = self:line()
    if not line then
        return nil, err
    end
    local kind, rest = sub(line, 1, 1), sub(line, 2)
    if kind == "+" or kind == "-" then
        return rest, kind
    elseif NUMBERS[kind] then
        local n = tonumber(rest)
        if not n then
            return nil, "protocol: bad number"
        end
        return n, kind
    elseif kind == "_" then
        return _M.null, kind
    elseif kind == "#" then
        return rest == "t", kind
    elseif BULKS[kind] then
        if rest == "-1" then
            return _M.null, kind
        end
        local length, reason = length_of(rest, MAX_BULK)
        if not length then
            return nil, reason
        end
        local value, broken = self:bulk(length)
        return value, value and kind or broken
    elseif LISTS[kind] then
        if rest == "-1" then
            return _M.null, kind
        end
        local count, reason = length_of(rest, MAX_ITEMS)
        if not count then
            return nil, reason
        end
        local list, broken = self:items(count * LISTS[kind], depth + 1)
        return list, list and kind or broken
    elseif kind == "|" then
        -- Attributes describe the value that follows; the edge does not use them.
        local count, reason = length_of(rest, MAX_ITEMS)
        if not count then
            return nil, reason
        end
        local skipped, broken = self:items(count * 2, depth + 1)
        if not skipped then
            return nil, broken
        end
        return self:value(depth)
    end
    return nil, "protocol: unknown type " .. (byte(kind) or "none")
end

function Reader:next()
    return self:value(0)
end

-- A command as the array of bulk strings that Redis reads.
function _M.command(...)
    local n = select("#", ...)
    local parts = { "*" .. n .. "\r\n" }
    for i = 1, n do
        local arg = tostring((select(i, ...)))
        parts[i + 1] = "$" .. #arg .. "\r\n" .. arg .. "\r\n"
    end
    return concat(parts)
end

return _M
