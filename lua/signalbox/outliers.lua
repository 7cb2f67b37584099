-- Passive ejection: an instance that fails several times in a row gets no requests for a while, at all workers of the
-- router, and for longer each time it comes back and fails again.
--
--   in ──failures in a row──▶ ejected for first_ms ──▶ on probation: the next failure ejects for twice as long, and
--                                                      so on to longest_ms; forgotten after longest_ms without
--
-- Never more than half of a host's instances: what would be more is not ejected, and if by other hosts' failures more
-- than half is out even so, all of them get requests again (fail open). So a host with one instance never loses it.
--
-- An instance is known by its address, whatever hosts it serves: it is one process.
--
-- What "in a row" means where nothing sees a success: the hot path runs no Lua when a request ends. There the cursor of
-- the record tells how many requests went to the instance since its first failure, and when more than half of them did
-- not come back as failures it is no row. Where success is seen (log phase of @full) it ends the row.
--
--   signalbox_outliers   "f:<address>"  failures in a row, of all workers; forgotten after a time without
--                        "e:<address>"  "until ms|times ejected|last back-off ms"
--                        "generation"   raised with each ejection; "g:<n>" the address ejected as the n-th
--
-- A worker holds the set of what is out in a table of its own and looks for another generation when its clock has
-- moved, which is once for all requests of one turn of its event loop.

local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")
local defaults = require("signalbox.policy.failure")

local now, log, WARN = ngx.now, ngx.log, ngx.WARN
local format, match = string.format, string.match
local floor, random = math.floor, math.random
local tonumber, pairs = tonumber, pairs
local pick = round_robin.pick

local dict = ngx.shared.signalbox_outliers

local _M = { count = 0 }

local FIRST = record.FIRST
-- A failure this long ago is not in a row with one now, seconds.
local WINDOW = 10
-- Generations a worker that has just started looks back.
local LOOK_BACK = 4096

-- address → the moment it comes back (seconds), and of those that came back, when.
local out, returned = {}, {}
-- address → { failures, cursor at the first, time of the last }, of this worker.
local rows = {}
local seen = 0
local looked_at = 0

local latest_return = 0

local function came_back(address, at)
    out[address] = nil
    _M.count = _M.count - 1
    returned[address] = at
    latest_return = at > latest_return and at or latest_return
end

local function state_of(address)
    local text = dict:get("e:" .. address)
    if not text then
        return nil
    end
    local till, times, back_off = match(text, "^(%d+)|(%d+)|(%d+)$")
    return tonumber(till) / 1000, tonumber(times), tonumber(back_off) / 1000
end

local function take_over(generation)
    local time = now()
    for address, till in pairs(out) do
        if till <= time then
            came_back(address, till)
        end
    end
    for address, at in pairs(returned) do
        if at + 3600 < time then
            returned[address] = nil
        end
    end
    local from = seen + 1
    if generation - from > LOOK_BACK then
        from = generation - LOOK_BACK
    end
    for n = from, generation do
        local address = dict:get("g:" .. n)
        local till = address and state_of(address)
        if till and till > time then
            _M.count = _M.count + (out[address] and 0 or 1)
            out[address] = till
            returned[address], rows[address] = nil, nil
        end
    end
    seen = generation
end

-- Whether any instance is out, after a look at what the other workers have found out.
function _M.any()
    local time = now()
    if time ~= looked_at then
        looked_at = time
        local generation = dict:get("generation")
        if generation and generation ~= seen then
            take_over(generation)
        end
    end
    return _M.count > 0
end

-- Whether this address is out now. Only worth asking when any() is true.
function _M.is_out(address)
    local till = out[address]
    if not till then
        return false
    elseif till <= now() then
        came_back(address, till)
        return false
    end
    return true
end
local is_out = _M.is_out

-- How many of list[from…to] are out.
local function out_of(list, from, to)
    local n = 0
    for i = from, to do
        if is_out(list[i]) then
            n = n + 1
        end
    end
    return n
end

-- When the address came back from its last ejection, seconds, or nil.
function _M.returned_at(address)
    return returned[address]
end

-- Whether anyone came back within the last `within_ms`.
function _M.returned_lately(now_ms, within_ms)
    return now_ms - latest_return * 1000 < within_ms
end

-- The next address of a plain record that is not out.
function _M.pick(route)
    local first = pick(route)
    if not is_out(first) then
        return first
    end
    local n = #route - FIRST + 1
    if out_of(route, FIRST, #route) * 2 > n then
        return first
    end
    for _ = 2, n do
        local address = pick(route)
        if not is_out(address) then
            return address
        end
    end
    return first
end

-- The next address of a plain record after `last` that was not tried and is not out; then one that is out, then as
-- round_robin.after says, with its second value.
function _M.after(route, last, tried)
    if _M.any() then
        local skipped = {}
        for i = FIRST, #route do
            skipped[route[i]] = tried[route[i]] or is_out(route[i]) or nil
        end
        local address, exhausted = round_robin.after(route, FIRST, #route, last, skipped)
        if not exhausted then
            return address, false
        end
    end
    return round_robin.after(route, FIRST, #route, last, tried)
end

-- `list` without what is out; `list` itself when nothing is, or when it is more than half of `whole`.
function _M.without(list, whole)
    if out_of(whole, 1, #whole) * 2 > #whole then
        return list
    end
    local left
    for i = 1, #list do
        if is_out(list[i]) then
            if not left then
                left = {}
                for j = 1, i - 1 do
                    left[j] = list[j]
                end
                left.cursor = random(#list)
            end
        elseif left then
            left[#left + 1] = list[i]
        end
    end
    return left or list
end

-- ── failures ───────────────────────────────────────────────────────────────────────────────────────────────────────

local function eject(address, settings, why)
    -- Several workers come to this at the same moment; one speaks for all.
    if not dict:add("lock:" .. address, true, 0.1) then
        return
    end
    local _, times, back_off = state_of(address)
    times = (times or 0) + 1
    back_off = back_off and back_off * 2 or settings.first_ms / 1000
    if back_off > settings.longest_ms / 1000 then
        back_off = settings.longest_ms / 1000
    end
    -- A tenth more or less, so that instances that failed together do not come back together.
    local till = now() + back_off * (0.9 + random() * 0.2)
    local text = format("%.0f|%d|%.0f", till * 1000, times, back_off * 1000)
    local kept = till - now() + settings.longest_ms / 1000
    local ok, err = dict:set("e:" .. address, text, kept)
    if not ok then
        log(WARN, "an ejection cannot be written down: ", err)
        return
    end
    dict:delete("f:" .. address)
    local generation = dict:incr("generation", 1, 0)
    dict:set("g:" .. generation, address, kept)
    dict:incr("ejections", 1, 0)
    log(WARN, "instance ", address, " is ejected for ", floor(back_off * 1000), " ms, for the ", times,
        ". time, after a ", why or "failure")
    looked_at = 0
end

-- How many requests of this worker went to one instance of the record since `cursor`.
local function requests_since(route, cursor)
    if record.is_plain(route) then
        return (route[1] - cursor) / (#route - FIRST + 1)
    end
    return (route.served - cursor) / #route.usable
end

-- Failures in a row, this one among them.
local function in_a_row(route, address)
    local time = now()
    local row = rows[address]
    if row and (time - row[3] > WINDOW or requests_since(route, row[2]) > 2 * row[1]) then
        row = nil
        dict:delete("f:" .. address)
    end
    if not row then
        row = { 0, record.is_plain(route) and route[1] or route.served, time }
        rows[address] = row
    end
    row[1], row[3] = row[1] + 1, time
    return dict:incr("f:" .. address, 1, 0, WINDOW) or row[1]
end

-- An instance of `route` has failed. why: the status that nginx gave it, for the log.
function _M.failed(route, address, why)
    local settings = defaults.EJECTION
    local list, from, to = route, FIRST, #route
    if not record.is_plain(route) then
        settings, list, from, to = route.rules.ejection, route.usable, 1, #route.usable
    end
    if not settings or out[address] then
        return
    end
    local count = in_a_row(route, address)
    local till, _, back_off = state_of(address)
    local on_probation = till and now() < till + back_off
    if count < settings.failures and not on_probation then
        return
    end
    _M.any()
    if (out_of(list, from, to) + 1) * 2 > to - from + 1 then
        return
    end
    eject(address, settings, why)
end

-- An instance has answered.
function _M.worked(address)
    if rows[address] then
        rows[address] = nil
        dict:delete("f:" .. address)
    end
end

-- For operators: the moment it comes back in milliseconds (0 when it is in), times ejected, failures in a row.
function _M.describe(address)
    _M.any()
    local till, times = state_of(address)
    return is_out(address) and till and floor(till * 1000) or 0, times or 0, dict:get("f:" .. address) or 0
end

function _M.ejections()
    return dict:get("ejections") or 0
end

return _M
