-- Whether the table that Redis shows now may replace the one the edge has believed so far.
--
-- `epoch` is the lineage of the table: random tokens, newest first, that the pacemaker extends when it seeds a master
-- anew. `serial` counts its changes. A master that comes back empty, or from an old backup, shows another lineage or a
-- lower serial; believing it would cut off every application. So such a table is left alone, loudly, until the
-- pacemaker has seeded it again (last of all it writes the epoch) or an operator says that it is right.
--
-- A table without an epoch is written by hand. It is trusted as long as no epoch was ever seen; its serial, when
-- somebody keeps one, must still not go back.
--
-- Pure: the caller brings what it remembers and what it read.

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

-- epoch, serial: what is believed so far, or nil. new_epoch, new_serial: what Redis shows, or nil when the key is not
-- there. nil when it may be believed, else the alarm.
function _M.refusal(epoch, serial, new_epoch, new_serial)
    local own = _M.newest(epoch)
    if own and not contains(new_epoch, own) then
        -- An empty master shows neither; that it is empty says more than that it is unknown.
        return new_epoch and _M.UNKNOWN_EPOCH or _M.REGRESSED
    end
    if serial and serial > (new_serial or 0) then
        return _M.REGRESSED
    end
    return nil
end

-- Serials are Redis integers. A value that is none (written by hand) counts as not being there.
function _M.serial(text)
    if type(text) == "string" and match(text, "^%d+$") and #text <= 15 then
        return tonumber(text)
    end
    return nil
end

return _M
