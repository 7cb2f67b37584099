-- Outlier ejection: an instance that fails several times in a row gets no requests for a while, from any worker of the
-- router. Each time it is restored and fails again, it is ejected for longer.
--
--   in ──failures in a row──▶ ejected for first_ms ──▶ in; the next failures in a row eject it for twice as long, up to
--                                                      longest_ms; forgotten after longest_ms without a failure
--
-- One failure after the return is not enough, because a client can choose a path whose answer is a 503: after one
-- ejection, one request a minute would remove a healthy instance for good.
--
-- At most half of a host's instances are ejected; further failing instances keep receiving requests. An instance is
-- identified by its address, whatever hosts it serves, because it is one process. So failures under other host names
-- can eject more than half of a host's instances; then the host fails open, and all of its instances get requests
-- again. A host with one instance never loses it.
--
-- The hot path runs no Lua when a request ends, so it sees no successes there. Instead record.served shows how many
-- requests went to the instance since its first failure; when more than half of these did not fail, the failures are
-- not in a row. All records count from which the instance got requests: hosts share instances, and each change of a
-- host makes a new record. Where a success is seen (log phase of @full), it ends the row.
--
-- A worker does not know what the instance answered before the first failure that the worker sees. Therefore this
-- failure is shared with the other workers only when a second one follows in a row.
--
--   signalbox_outliers   "f:<address>"  failures in a row, of all workers; expires
--                        "e:<address>"  "until ms (clock.lua)|times ejected|last back-off ms"
--                        "generation"   incremented with each ejection; "g:<n>" is the address of the n-th ejection
--
-- Each worker keeps the set of ejected addresses in a separate table. It checks for a new generation when its clock
-- has moved, which is once for all requests of one turn of its event loop.

local bounded = require("signalbox.bounded")
local clock = require("signalbox.clock")
local defaults = require("signalbox.policy.failure")
local record = require("signalbox.record")
local round_robin = require("signalbox.balance.round_robin")

local now, time_of_day, log, WARN = clock.now, ngx.now, ngx.log, ngx.WARN
local format, match = string.format, string.match
local floor, random = math.floor, math.random
local tonumber, pairs, sort = tonumber, pairs, table.sort
local plain_next, rules_of, served, usable = record.plain_next, record.rules, record.served, record.usable

local dict = ngx.shared.signalbox_outliers

local _M = {}

-- Failures that are further apart than this are not consecutive, seconds.
local WINDOW = 10
-- Maximum number of past generations that a worker reads when it starts.
local LOOK_BACK = 4096
-- How long a worker remembers when an instance was restored, seconds.
local REMEMBER_RESTORED = 3600

-- Address → end of its ejection (seconds), the number of these, and address → when it was restored.
local ejected, count, restored = {}, 0, {}
-- Maximum number of records of an instance whose requests are compared with their failures, and seconds without a
-- request after which another record takes the place of one: hosts change.
local MAX_RECORDS, IDLE = 16, 1
-- Minimum number of failing instances that a worker remembers.
local MAX_ROWS = 1024
-- Address → { failures, time of the last, number of records, records = { record → { its requests when it was first
-- seen, when that was, its failures since then } } }, in this worker.
-- Instances are replaced all the time, and a row refers to records, so old rows are dropped.
local rows = bounded.new(MAX_ROWS)
local seen_generation, checked_at, last_restored = 0, 0, 0

local function restore(address, at)
    ejected[address] = nil
    count = count - 1
    restored[address] = at
    last_restored = at > last_restored and at or last_restored
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
    for address, till in pairs(ejected) do
        if till <= time then
            restore(address, till)
        end
    end
    for address, at in pairs(restored) do
        if at + REMEMBER_RESTORED < time then
            restored[address] = nil
        end
    end
    local from = seen_generation + 1
    if generation - from > LOOK_BACK then
        from = generation - LOOK_BACK
    end
    for n = from, generation do
        local address = dict:get("g:" .. n)
        local till = address and state_of(address)
        if till and till > time then
            count = count + (ejected[address] and 0 or 1)
            ejected[address] = till
            restored[address] = nil
            rows:delete(address)
        end
    end
    seen_generation = generation
end

-- Whether any instance is ejected, including by other workers.
function _M.any()
    local time = time_of_day()
    if time ~= checked_at then
        checked_at = time
        local generation = dict:get("generation")
        if generation and generation ~= seen_generation then
            take_over(generation)
        end
    end
    return count > 0
end

-- Whether this address is ejected now. The result is current only after any().
local function is_ejected(address)
    local till = ejected[address]
    if not till then
        return false
    elseif till <= now() then
        restore(address, till)
        return false
    end
    return true
end
_M.is_ejected = is_ejected

-- How many of list[from…to] are ejected.
local function count_ejected(list, from, to)
    local n = 0
    for i = from, to do
        if is_ejected(list[i]) then
            n = n + 1
        end
    end
    return n
end

-- When the last ejection of the address ended, as time of day in seconds, or nil.
function _M.restored_at(address)
    local at = restored[address]
    return at and time_of_day() - (now() - at)
end

-- Whether any instance was restored within the last `within_ms`.
function _M.restored_within(within_ms)
    return last_restored > 0 and (now() - last_restored) * 1000 < within_ms
end

-- The next address of a plain record that is not ejected.
function _M.pick(route)
    local first = plain_next(route)
    if not is_ejected(first) then
        return first
    end
    local list, from, to = usable(route)
    if count_ejected(list, from, to) * 2 > to - from + 1 then
        return first
    end
    for _ = from + 1, to do
        local address = plain_next(route)
        if not is_ejected(address) then
            return address
        end
    end
    return first
end

-- The next address of a plain record after `last` that was neither tried nor ejected, otherwise one that is ejected. If
-- all were tried, the result is that of round_robin.after, including its second value.
function _M.after(route, last, tried)
    local list, from, to = usable(route)
    if _M.any() then
        local skipped = {}
        for i = from, to do
            skipped[list[i]] = tried[list[i]] or is_ejected(list[i]) or nil
        end
        local address, exhausted = round_robin.after(list, from, to, last, skipped)
        if not exhausted then
            return address, false
        end
    end
    return round_robin.after(list, from, to, last, tried)
end

-- `list` without ejected addresses; `list` itself if none is ejected, or if more than half of `whole` are.
function _M.without(list, whole)
    if count_ejected(whole, 1, #whole) * 2 > #whole then
        return list
    end
    local left
    for i = 1, #list do
        if is_ejected(list[i]) then
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

local function eject(address, settings, reason)
    -- Several workers may get here at the same time; only one acts.
    if not dict:add("lock:" .. address, true, 0.1) then
        return
    end
    local _, times, back_off = state_of(address)
    times = (times or 0) + 1
    back_off = back_off and back_off * 2 or settings.first_ms / 1000
    if back_off > settings.longest_ms / 1000 then
        back_off = settings.longest_ms / 1000
    end
    -- 10% jitter, so that instances that failed together are not restored together.
    local till = now() + back_off * (0.9 + random() * 0.2)
    local text = format("%.0f|%d|%.0f", till * 1000, times, back_off * 1000)
    local kept = till - now() + settings.longest_ms / 1000
    local ok, err = dict:set("e:" .. address, text, kept)
    if not ok then
        log(WARN, "cannot store an ejection: ", err)
        return
    end
    dict:delete("f:" .. address)
    local generation = dict:incr("generation", 1, 0)
    dict:set("g:" .. generation, address, kept)
    dict:incr("ejections", 1, 0)
    log(WARN, "instance ", address, " is ejected for ", floor(back_off * 1000), " ms, ejection ", times,
        ", last failure: ", reason or "unknown")
    checked_at = 0
end

-- About how many requests an instance got since the first failure of the row, and how many failed. Only records that
-- are followed count, for both numbers.
local function since_first(row)
    local requests, failures = 0, 0
    for route, followed in pairs(row.records) do
        local _, from, to = usable(route)
        requests = requests + (served(route) - followed.served) / (to - from + 1)
        failures = failures + followed.failures
    end
    return requests, failures
end

-- Makes a place for another record. Returns whether there is one.
local function make_place(row, time)
    if row.followed < MAX_RECORDS then
        row.followed = row.followed + 1
        return true
    end
    for route, followed in pairs(row.records) do
        if time - followed.at > IDLE and served(route) == followed.served then
            row.records[route] = nil
            return true
        end
    end
    return false
end

-- The number of consecutive failures, including this one. 0 for a failure that does not count: it is of a record that
-- is not followed, so the requests that did not fail there would not be seen.
local function in_a_row(route, address)
    local time = now()
    local row = rows:get(address)
    if row then
        local requests, failures = since_first(row)
        if time - row.last > WINDOW or requests > 2 * failures then
            row = nil
            dict:delete("f:" .. address)
        end
    end
    if not row then
        row = { failures = 0, followed = 0, records = {} }
        rows:set(address, row)
    end
    local followed = row.records[route]
    if not followed then
        if not make_place(row, time) then
            return 0
        end
        followed = { served = served(route), at = time, failures = 0 }
        row.records[route] = followed
    end
    row.failures, row.last = row.failures + 1, time
    followed.failures = followed.failures + 1
    if row.failures == 1 then
        return (dict:get("f:" .. address) or 0) + 1
    end
    return dict:incr("f:" .. address, row.failures == 2 and 2 or 1, 0, WINDOW) or row.failures
end

-- Records that an instance of `route` has failed. reason: for the log, the status that nginx assigned.
function _M.failed(route, address, reason)
    local rules, settings = rules_of(route), defaults.EJECTION
    if rules then
        settings = rules.ejection
    end
    if not settings or ejected[address] then
        return
    end
    local list, from, to = usable(route)
    local instances = to - from + 1
    if in_a_row(route, address) < settings.failures then
        return
    end
    _M.any()
    if (count_ejected(list, from, to) + 1) * 2 > instances then
        return
    end
    eject(address, settings, reason)
end

-- Records that an instance has answered.
function _M.worked(address)
    if rows:get(address) then
        rows:delete(address)
        dict:delete("f:" .. address)
    end
end

-- For operators: the end of the ejection in unix milliseconds (0 if there is none), the number of ejections, and of
-- consecutive failures.
function _M.describe(address)
    _M.any()
    local till, times = state_of(address)
    local till_ms = till and floor((time_of_day() + till - now()) * 1000)
    local row = rows:get(address)
    return is_ejected(address) and till_ms or 0, times or 0, dict:get("f:" .. address) or row and row.failures or 0
end

-- The ejected addresses with the ends of their ejections in unix milliseconds, at most `most`; those that end last are
-- first.
function _M.list(most)
    local found = {}
    if _M.any() then
        local ahead = time_of_day() - now()
        for address, till in pairs(ejected) do
            if till > now() then
                found[#found + 1] = { address, floor((till + ahead) * 1000) }
            end
        end
        sort(found, function(a, b)
            return a[2] > b[2]
        end)
        for i = #found, most + 1, -1 do
            found[i] = nil
        end
    end
    return found
end

function _M.ejections()
    return dict:get("ejections") or 0
end

return _M
