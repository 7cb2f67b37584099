-- The last good table as text. /edge/snapshot writes it from the shared dictionary. The sidecar stores it on disk,
-- because a worker that wrote to the disk would block its requests. nginx reads it at start, in case Redis is not
-- available then.
--
--   signalbox-routes 1 <generation>
--   epoch TAB <lineage>                                    when one was seen
--   serial TAB <number>                                    when one was seen
--   route TAB <name> TAB <log key> TAB <policy> TAB <address> <address> …
--   wild TAB <host> TAB <wildcard name that served it>
--   cert TAB <server name> TAB <certificate as in the table, its private key encrypted>
--   end TAB <number of route, wild and cert lines> TAB <CRC-32 of every byte before this line, 8 hex digits>
--
-- Policies contain secrets. A client that does not prove that it is the sidecar gets the table without them. Its first
-- line is `signalbox-routes hidden <generation>`, so that such a table is never loaded.
--
-- Backslash, tab, newline and return inside a field are written \\ \t \n \r. Every line ends with \n, the last
-- included.

local crc32 = require("signalbox.crc32")
local record = require("signalbox.record")
local shared = require("signalbox.shared")

local match, gmatch, sub, find, format = string.match, string.gmatch, string.sub, string.find, string.format
local concat, tonumber = table.concat, tonumber
local log, WARN, NOTICE = ngx.log, ngx.WARN, ngx.NOTICE

local _M = { VERSION = 1 }

-- Maximum number of slots that are read before other work of the worker: about a millisecond.
local SLOTS_PER_STEP = 1000
-- Without secrets, policies are read and written as JSON.
local HIDDEN_SLOTS_PER_STEP = 25
local MAX_ALIASES = 20000
local MAX_CERTIFICATES = 100000

-- In place of a certificate and its private key.
local HIDDEN = "(hidden)"

local function head(version, generation, epoch, serial)
    local lines = { format("signalbox-routes %s %.0f\n", version, generation) }
    if epoch then
        lines[#lines + 1] = "epoch\t" .. epoch .. "\n"
    end
    if serial then
        lines[#lines + 1] = format("serial\t%.0f\n", serial)
    end
    return concat(lines)
end

local function as_it_is(text)
    return text
end

local function hidden()
    return HIDDEN
end

-- Calls emit(text) for each piece of the snapshot and pause() between them. Stops early if pause() returns false. hide:
-- without secrets.
function _M.write(generation, emit, pause, hide)
    local route_text = hide and record.without_secrets or as_it_is
    local certificate_text = hide and hidden or as_it_is
    local step = hide and HIDDEN_SLOTS_PER_STEP or SLOTS_PER_STEP
    local sum, count = crc32.START, 0
    local function put(text)
        sum = crc32.update(sum, text)
        emit(text)
    end
    local epoch, serial = shared.accepted_table()
    put(head(hide and "hidden" or _M.VERSION, generation, epoch, serial))
    local lines, n, stopped = {}, 0, false
    local function line(kind, name, rest)
        n = n + 1
        lines[n] = kind .. "\t" .. name .. "\t" .. rest .. "\n"
    end
    local function flush()
        if n > 0 then
            put(concat(lines, "", 1, n))
            count, n = count + n, 0
        end
        stopped = stopped or pause() == false
        return stopped
    end
    local slots = shared.slots()
    for slot = 1, slots do
        local name, text = shared.at(slot)
        if name then
            line("route", name, route_text(text))
        end
        if slot % step == 0 and flush() then
            return
        end
    end
    flush()
    local function put_all(kind, names, text_of, shown)
        for i = 1, stopped and 0 or #names do
            local text = text_of(names[i])
            if text then
                line(kind, names[i], record.escape(shown(text)))
            end
            if i % step == 0 and flush() then
                return
            end
        end
        flush()
    end
    put_all("wild", shared.aliases(MAX_ALIASES), shared.alias, as_it_is)
    put_all("cert", shared.certificates(MAX_CERTIFICATES), shared.certificate, certificate_text)
    if not stopped then
        emit(format("end\t%d\t%s\n", count, crc32.hex(sum)))
    end
end

-- Returns the lines between head and end of a complete snapshot, or nil and the error.
function _M.verify(text)
    local version = match(text, "^signalbox%-routes (%d+) %d+\n")
    if not version then
        return nil, "not a snapshot"
    elseif tonumber(version) ~= _M.VERSION then
        return nil, "unsupported version " .. version
    end
    local stop, count, sum = match(text, "()end\t(%d+)\t(%x+)\n$")
    if not stop then
        return nil, "no end line, it is incomplete"
    end
    local body = sub(text, 1, stop - 1)
    if format("%08x", ngx.crc32_long(body)) ~= sum then
        return nil, "wrong checksum"
    end
    local lines = 0
    for kind in gmatch(body, "\n(%l+)\t") do
        lines = lines + ((kind == "route" or kind == "wild" or kind == "cert") and 1 or 0)
    end
    if lines ~= tonumber(count) then
        return nil, lines .. " lines where the end line announces " .. count
    end
    return body, lines
end

local function take(line)
    local tab = find(line, "\t", 1, true)
    local kind, rest = sub(line, 1, tab - 1), sub(line, tab + 1)
    if kind == "route" then
        -- The record is decoded when a request needs it. The checksum proves that the edge wrote it.
        local stop = find(rest, "\t", 1, true)
        if stop then
            shared.put_text(sub(rest, 1, stop - 1), sub(rest, stop + 1))
        end
    elseif kind == "wild" or kind == "cert" then
        local name, value = match(rest, "^([^\t]+)\t([^\t]+)$")
        if name then
            local put = kind == "wild" and shared.put_alias or shared.put_certificate
            put(name, record.unescape(value))
        end
    elseif kind == "epoch" then
        shared.accept_table(rest, nil)
    elseif kind == "serial" then
        shared.accept_table(nil, tonumber(rest))
    end
end

-- Fills the shared dictionary from the text of a snapshot. Returns true, or nil and the error.
function _M.read(text)
    local body, count = _M.verify(text)
    if not body then
        return nil, count
    end
    local at = find(body, "\n", 1, true) + 1
    while at <= #body do
        local stop = find(body, "\n", at, true)
        take(sub(body, at, stop - 1))
        at = stop + 1
    end
    return true, count
end

-- Called at the start of the master. A missing or damaged snapshot does not prevent the start.
function _M.load(path)
    local file = io.open(path, "rb")
    if not file then
        log(NOTICE, "no snapshot of the route table at ", path)
        return
    end
    local text, err = file:read("*a")
    file:close()
    local ok, count = nil, err
    if text then
        ok, count = _M.read(text)
    end
    if ok then
        log(NOTICE, "snapshot of the route table read: ", count, " lines")
    else
        log(WARN, "the snapshot of the route table at ", path, " is ignored: ", count)
    end
end

return _M
