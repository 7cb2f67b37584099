-- JSON: policies are read by cjson, and the edge's own answers need nothing but a string that is always valid.

local cjson = require("cjson.safe")

local byte, format, gsub = string.byte, string.format, string.gsub

-- An instance of our own: the settings of the shared one belong to whoever else loads it.
local reader = cjson.new()
reader.decode_invalid_numbers(false)
reader.decode_max_depth(16)

local _M = { null = cjson.null, decode = reader.decode }

local function escape_control(c)
    return format("\\u%04x", byte(c))
end

-- A quoted JSON string. Bytes over 0x7e become \u escapes too: cjson would pass on what a client sent as it is, and
-- bytes that are no UTF-8 would make our answer invalid.
function _M.string(text)
    return '"' .. gsub(gsub(text, '[\\"]', "\\%0"), "[^\32-\126]", escape_control) .. '"'
end

return _M
