-- A small strict JSON reader for policies (a few hundred bytes, read once a change) and a writer of strings for the
-- edge's own answers. Debian packages lua-cjson apart from nginx's Lua, and one more package is not worth a policy.

local byte, char, find, sub, gsub = string.byte, string.char, string.find, string.sub, string.gsub
local format, match = string.format, string.match
local tonumber, pcall, error, floor = tonumber, pcall, error, math.floor

local _M = { null = {} }

local MAX_DEPTH = 16

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(code)
    if code < 0x80 then
        return char(code)
    elseif code < 0x800 then
        return char(0xC0 + floor(code / 64), 0x80 + code % 64)
    elseif code < 0x10000 then
        return char(0xE0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
    end
    return char(0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64,
        0x80 + floor(code / 64) % 64, 0x80 + code % 64)
end

local function skip(text, at)
    return find(text, "[^ \t\r\n]", at) or #text + 1
end

local function read_string(text, at)
    local parts, n = {}, 0
    while true do
        local stop = find(text, '["\\%c]', at)
        if not stop then
            error("string without end", 0)
        end
        n = n + 1
        parts[n] = sub(text, at, stop - 1)
        local mark = byte(text, stop)
        if mark == 34 then
            return table.concat(parts), stop + 1
        elseif mark ~= 92 then
            error("control character in string", 0)
        end
        local escape = sub(text, stop + 1, stop + 1)
        n = n + 1
        if escape == "u" then
            local hex = match(text, "^%x%x%x%x", stop + 2)
            if not hex then
                error("bad \\u", 0)
            end
            local code = tonumber(hex, 16)
            at = stop + 6
            if code >= 0xD800 and code < 0xDC00 then
                local low = match(text, "^\\u(%x%x%x%x)", at)
                local second = low and tonumber(low, 16)
                if not second or second < 0xDC00 or second > 0xDFFF then
                    error("half of a surrogate pair", 0)
                end
                code = 0x10000 + (code - 0xD800) * 1024 + second - 0xDC00
                at = at + 6
            end
            parts[n] = utf8(code)
        else
            parts[n] = ESCAPES[escape] or error("bad escape", 0)
            at = stop + 2
        end
    end
end

local read_value

local function read_object(text, at, depth)
    local object = {}
    at = skip(text, at)
    if byte(text, at) == 125 then
        return object, at + 1
    end
    while true do
        at = skip(text, at)
        if byte(text, at) ~= 34 then
            error("expected a name", 0)
        end
        local name, value
        name, at = read_string(text, at + 1)
        at = skip(text, at)
        if byte(text, at) ~= 58 then
            error("expected a colon", 0)
        end
        value, at = read_value(text, at + 1, depth)
        object[name] = value
        at = skip(text, at)
        local mark = byte(text, at)
        at = at + 1
        if mark == 125 then
            return object, at
        elseif mark ~= 44 then
            error("expected , or }", 0)
        end
    end
end

local function read_array(text, at, depth)
    local array, n = {}, 0
    at = skip(text, at)
    if byte(text, at) == 93 then
        return array, at + 1
    end
    while true do
        n = n + 1
        array[n], at = read_value(text, at, depth)
        at = skip(text, at)
        local mark = byte(text, at)
        at = at + 1
        if mark == 93 then
            return array, at
        elseif mark ~= 44 then
            error("expected , or ]", 0)
        end
    end
end

local WORDS = { t = { "true", true }, f = { "false", false }, n = { "null", _M.null } }

function read_value(text, at, depth)
    if depth > MAX_DEPTH then
        error("nested too deeply", 0)
    end
    at = skip(text, at)
    local mark = sub(text, at, at)
    if mark == "{" then
        return read_object(text, at + 1, depth + 1)
    elseif mark == "[" then
        return read_array(text, at + 1, depth + 1)
    elseif mark == '"' then
        return read_string(text, at + 1)
    end
    local word = WORDS[mark]
    if word and sub(text, at, at + #word[1] - 1) == word[1] then
        return word[2], at + #word[1]
    end
    local number = match(text, "^-?%d+%.?%d*[eE]?[+-]?%d*", at)
    local n = number and not find(number, "^-?0%d") and not find(number, "%.$") and tonumber(number)
    if not n then
        error("unexpected character", 0)
    end
    return n, at + #number
end

-- value, or nil and what is wrong. JSON null is json.null.
function _M.decode(text)
    local ok, value, at = pcall(read_value, text, 1, 0)
    if not ok then
        return nil, value
    end
    if skip(text, at) <= #text then
        return nil, "text after the value"
    end
    return value
end

local function escape_control(c)
    return format("\\u%04x", byte(c))
end

-- A quoted JSON string. Bytes over 0x7e become \u escapes too, so what a client sent cannot make our answer invalid.
function _M.string(text)
    return '"' .. gsub(gsub(text, '[\\"]', "\\%0"), "[^\32-\126]", escape_control) .. '"'
end

return _M
