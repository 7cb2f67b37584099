-- Whether the table that Redis shows may replace the one that the edge has accepted so far.
--
-- `epoch` is the lineage of the table: random tokens, newest first, to which the pacemaker adds one when it seeds a
-- primary again. `serial` counts its changes. A primary that lost its data or was restored from an old backup shows
-- another lineage or a lower serial; following it would cut off every application. So the edge keeps the last good
-- table and raises an alarm, until the pacemaker has seeded the primary again (it writes the epoch last) or an operator
-- accepts the table.
--
-- A table without an epoch was written by hand. It is accepted as long as no epoch was ever seen; if it has a serial,
-- the serial must still not decrease.
--
-- Pure: the caller passes what it remembers and what it read.

local gmatch, match = string.gmatch, string.match
local tonumber, type = tonumber, type

local _M = {}

_M.REGRESSED = "table_regressed"
_M.UNKNOWN_EPOCH = "epoch_unknown"

-- The newest token of a lineage, or nil.
function _M.newest(lineage)
    return lineage and match(lineage, "%S+")
end

local function contains(lineage, token)
    for one in gmatch(lineage or "", "%S+") do
        if one == token then
            return true
        end
    end
    return false
end

-- epoch, serial: of the accepted table, or nil. new_epoch, new_serial: what Redis shows, or nil when the key is
-- missing. Returns nil when the table may be accepted, otherwise the alarm.
function _M.refusal(epoch, serial, new_epoch, new_serial)
    local own = _M.newest(epoch)
    if own and not contains(new_epoch, own) then
        -- An empty primary has neither. "Regressed" describes that better than "unknown".
        return new_epoch and _M.UNKNOWN_EPOCH or _M.REGRESSED
    end
    if serial and serial > (new_serial or 0) then
        return _M.REGRESSED
    end
    return nil
end

-- Serials are Redis integers. Any other value (written manually) is treated as missing.
function _M.serial(text)
    if type(text) == "string" and match(text, "^%d+$") and #text <= 15 then
        return tonumber(text)
    end
    return nil
end

return _M
