-- Counts of requests in flight, shared by the workers of a router, that are correct after the death of a worker. A
-- killed worker never subtracts its requests, so each worker also counts its own part, and another worker subtracts
-- that.
--
-- No count expires, because a request (a WebSocket) can last for days.
--
--   signalbox_limits   <key>             requests in flight; keys are those of limits.lua
--                      "p|<pid>|<key>"   those of one worker
--                      "s|<n>"           the worker with the n-th slot; 0 if it has ended. Slots have no gaps

local ffi = require("ffi")

local match, sub = string.match, string.sub
local log, WARN = ngx.log, ngx.WARN

local dict = ngx.shared.signalbox_limits

local _M = {}

ffi.cdef("int kill(int pid, int signal);")
local C = ffi.C
local NO_SUCH_PROCESS = 3

-- How long a worker may take to subtract what another one has left, and to take a slot, seconds.
local SUBTRACT_SECONDS, TAKE_SECONDS = 10, 1
local MAX_SLOTS = 4096

-- Whether this worker has started to count, and the key of its slot.
local joined, own_slot = false, nil

local function is_alive(pid)
    return C.kill(pid, 0) == 0 or ffi.errno() ~= NO_SUCH_PROCESS
end

local function add(key, by)
    local count, err = dict:incr(key, by)
    if count or err ~= "not found" or by < 0 then
        return count, err
    end
    local ok
    ok, err = dict:safe_add(key, by)
    if err == "exists" then
        -- Another worker was faster.
        return dict:incr(key, by)
    end
    return ok and by or nil, err
end

local function subtract(key, by)
    local count = dict:incr(key, -by)
    if count and count <= 0 then
        dict:delete(key)
    end
end

local function part_of(key)
    return "p|" .. ngx.worker.pid() .. "|" .. key
end

-- Counts one request more. Returns the number in flight, or nil and an error.
function _M.take(key)
    local ok, err = add(part_of(key), 1)
    if not ok then
        return nil, err
    end
    local count
    count, err = add(key, 1)
    if not count then
        subtract(part_of(key), 1)
    end
    return count, err
end

function _M.give_back(key)
    subtract(key, 1)
    subtract(part_of(key), 1)
end

-- Subtracts what a worker has left.
local function subtract_all_of(pid)
    local prefix = "p|" .. pid .. "|"
    local keys = dict:get_keys(0)
    for i = 1, #keys do
        if sub(keys[i], 1, #prefix) == prefix then
            local count = dict:get(keys[i])
            dict:delete(keys[i])
            if count then
                subtract(match(keys[i], "^p|%d+|(.*)$"), count)
            end
        end
    end
end

-- Takes a slot for this worker. When the memory is full, it has none until some is free.
local function take_slot()
    local own = ngx.worker.pid()
    for n = 1, MAX_SLOTS do
        local slot = "s|" .. n
        if (dict:get(slot) or 0) == 0 then
            local locked, err = dict:safe_add("take|" .. n, true, TAKE_SECONDS)
            if locked then
                if (dict:get(slot) or 0) == 0 then
                    local ok
                    ok, err = dict:safe_set(slot, own)
                    own_slot = ok and slot
                end
                dict:delete("take|" .. n)
            end
            if own_slot then
                return
            elseif err == "no memory" then
                return err
            end
        end
    end
end

-- Finds workers that have ended, however they did. Called once per second.
function _M.sweep()
    local n = 1
    local pid = dict:get("s|1")
    while pid do
        local slot = "s|" .. n
        if pid ~= 0 and not is_alive(pid) and dict:safe_add("gone|" .. pid, true, SUBTRACT_SECONDS) then
            -- Another worker may have done it since, and a third may have the slot.
            if dict:get(slot) == pid then
                subtract_all_of(pid)
                dict:safe_set(slot, 0)
            end
            dict:delete("gone|" .. pid)
        end
        n = n + 1
        pid = dict:get("s|" .. n)
    end
    if joined and not (own_slot and dict:get(own_slot) == ngx.worker.pid()) then
        own_slot = nil
        take_slot()
    end
end

-- Called when this worker starts. Its predecessor is missing already, so the requests of that one are subtracted
-- before this worker accepts the first one.
function _M.join()
    _M.sweep()
    -- A process ID may be used again.
    subtract_all_of(ngx.worker.pid())
    joined = true
    local err = take_slot()
    if err then
        log(WARN, "the memory for limits is full (", err, "); requests of this worker are counted until it is not")
    end
end

return _M
