-- Which serial of the table each worker has applied. Each worker writes its own line into the shared dictionary;
-- /edge/ack reads all lines and waits until the slowest worker has reached a serial.
--
-- A waiting request first sleeps until the worker that serves it has reached the serial itself, which costs nothing.
-- The other workers get the same push from Redis at almost the same moment. So only then does the request poll the
-- dictionary, for the short time until the others have reached the serial, too.
--
--   "worker:<id>"   pid of the worker that has this id now
--   "acks"          incremented with each acknowledgement, so that waiting requests poll a single number
--   "pid:<pid>"     "acknowledged serial | at_ms | beat_ms | accepted 0/1 | serial seen | alarm | newest epoch"
--
-- Lines are keyed by pid because after a reload an old and a new worker have the same id. The new one takes over the
-- id, and no request reads what the old one still writes under its pid. So no request waits for an exiting worker.

local json = require("signalbox.json")
local semaphore = require("ngx.semaphore")
local lineage = require("signalbox.lineage")

local worker_pid, worker_id, worker_count = ngx.worker.pid, ngx.worker.id, ngx.worker.count
local now, update_time, sleep = ngx.now, ngx.update_time, ngx.sleep
local format, match, floor, max, min = string.format, string.match, math.floor, math.max, math.min
local tonumber, concat = tonumber, table.concat

local state = ngx.shared.signalbox_state

local _M = {}

local MAX_WAIT = 30
-- How often the other workers' lines are polled: POLLS times in quick succession, then rarely, because a worker without
-- a connection to Redis can be behind for a long time.
local POLL, POLLS, SELDOM = 0.001, 100, 0.05
-- The interval of the timer whose only purpose is to detect the end of this worker.
local HOUR_SECONDS = 3600
-- How long the line of a worker is kept after the worker has ended.
local LINE_LIFETIME_SECONDS = 60
-- The line of a worker that has not written one.
local NO_LINE = "0|0|0|0|0||"

local own_serial, own_at = 0, 0

-- Requests that wait for this worker's acknowledgement.
local waiting, ready = 0, nil

local function wake()
    if waiting > 0 then
        ready:post(waiting)
    end
end

function _M.join()
    state:set("worker:" .. worker_id(), worker_pid())
    -- nginx runs a timer early when the worker must end. The sidecar then sends its request to the worker that replaces
    -- it.
    local ok, err = ngx.timer.every(HOUR_SECONDS, function(premature)
        if premature then
            wake()
        end
    end)
    if not ok then
        ngx.log(ngx.ERR, "cannot start the timer of /edge/ack: ", err)
    end
end

-- acknowledged: a serial, or false to keep the last one. accepted: whether the worker follows an accepted table.
function _M.publish(acknowledged, seen, epoch, accepted, alarm)
    update_time()
    local now_ms, raised = floor(now() * 1000), false
    if acknowledged and acknowledged ~= own_serial then
        own_serial, own_at = acknowledged, now_ms
        raised = true
    end
    state:set("pid:" .. worker_pid(), format("%.0f|%.0f|%.0f|%d|%.0f|%s|%s", own_serial, own_at, now_ms,
        accepted and 1 or 0, seen or 0, alarm or "", lineage.newest(epoch) or ""), LINE_LIFETIME_SECONDS)
    if raised then
        state:incr("acks", 1, 0)
        wake()
    end
end

local function read(id)
    local pid = state:get("worker:" .. id)
    local line = pid and state:get("pid:" .. pid) or NO_LINE
    local serial, at, beat, accepted, seen, alarm, epoch = match(line, "^(%d+)|(%d+)|(%d+)|(%d)|(%d+)|([^|]*)|(.*)$")
    return {
        worker = id, pid = pid or 0, serial = tonumber(serial), at_ms = tonumber(at), beat_ms = tonumber(beat),
        accepted = accepted == "1", seen = tonumber(seen), alarm = alarm, epoch = epoch,
    }
end

function _M.workers()
    local list = {}
    for id = 0, worker_count() - 1 do
        list[id + 1] = read(id)
    end
    return list
end

local function lowest(workers)
    local least = workers[1].serial
    for i = 2, #workers do
        least = min(least, workers[i].serial)
    end
    return least
end
_M.lowest = lowest

function _M.workers_json(workers)
    local parts = {}
    for i = 1, #workers do
        local one = workers[i]
        parts[i] = format('{"worker":%d,"pid":%d,"serial":%.0f,"at_ms":%.0f,"beat_ms":%.0f,"accepted":%s}',
            one.worker, one.pid, one.serial, one.at_ms, one.beat_ms, one.accepted and "true" or "false")
    end
    return "[" .. concat(parts, ",") .. "]"
end

-- The newest epoch token of any worker's table.
function _M.epoch(workers)
    for i = 1, #workers do
        if workers[i].epoch ~= "" then
            return workers[i].epoch
        end
    end
    return ""
end

-- Waits until this worker acknowledges, at most until the deadline, rounded up to a millisecond.
local function await_own(deadline)
    ready = ready or semaphore.new()
    waiting = waiting + 1
    -- A wait of less than a millisecond returns without yielding, so the cached time would not advance.
    ready:wait(max(deadline - now(), POLL))
    waiting = waiting - 1
end

-- Waits for an acknowledgement of another worker after `acks` was read, at most until the deadline.
local function await_others(acks, deadline)
    for _ = 1, POLLS do
        sleep(POLL)
        if state:get("acks") ~= acks or now() >= deadline or ngx.worker.exiting() then
            return
        end
    end
    -- The lines are read again in any case, because a worker may have been replaced.
    sleep(SELDOM)
end

-- The body of /edge/ack. wanted: serial or nil. wait: seconds.
function _M.await(wanted, wait)
    update_time()
    local deadline = now() + (wait < MAX_WAIT and wait or MAX_WAIT)
    while true do
        -- Read before the lines, so that an acknowledgement in between causes another pass and is never missed.
        local acks = state:get("acks")
        local workers = _M.workers()
        local least = lowest(workers)
        if not wanted or least >= wanted or now() >= deadline or ngx.worker.exiting() then
            return format('{"reached":%s,"serial":%.0f,"epoch":%s,"workers":%s}\n',
                (not wanted or least >= wanted) and "true" or "false", least,
                json.string(_M.epoch(workers)), _M.workers_json(workers))
        elseif own_serial < wanted then
            await_own(deadline)
        else
            await_others(acks, deadline)
        end
    end
end

return _M
