-- JSON: cjson reads policies; the edge's own answers only need a string that is always valid.

local cjson = require("cjson.safe")

local byte, format, gsub = string.byte, string.format, string.gsub

-- A separate instance, because other Lua code may change the settings of the shared one.
local reader = cjson.new()
reader.decode_invalid_numbers(false)
reader.decode_max_depth(16)

local _M = { null = cjson.null, decode = reader.decode, encode = reader.encode }

local function escape_control(c)
    return format("\\u%04x", byte(c))
end

-- A quoted JSON string. Bytes above 0x7e become \u escapes too: cjson would copy a client's bytes, and bytes that are
-- not UTF-8 would make the answer invalid.
function _M.string(text)
    return '"' .. gsub(gsub(text, '[\\"]', "\\%0"), "[^\32-\126]", escape_control) .. '"'
end

return _M
