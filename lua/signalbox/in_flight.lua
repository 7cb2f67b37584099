-- Requests under way at each instance, of hosts with a policy. Counted by each worker for itself: a count that all
-- share would cost two locked operations a request, and a worker that is killed would leave its part of it behind for
-- good.
--
-- @full counts with its log phase (begin, finish). The hot path has none: an empty one costs every request there more
-- than choosing an instance does. So for those requests that have to be counted nginx itself is asked to say when they
-- are over (until_end): it calls the clean-up handlers of a request that ends, and one that adds 1 to a number in
-- memory is there in every C library, sem_post. What was begun less what that semaphore counts is under way.
--
-- In the shared dictionary each worker only shows its sum, once a second, for /metrics.

local ffi = require("ffi")

local worker_id, worker_count = ngx.worker.id, ngx.worker.count
local state = ngx.shared.signalbox_state
local pairs, pcall = pairs, pcall

local _M = { total = 0 }

-- How long a sum counts that its worker does not renew, seconds.
local FRESH = 3

local counts = {}

-- Address → { begun, semaphore that counts the ended, begun when it was last swept }.
local slots = {}

ffi.cdef([[
    typedef struct { void *handler; void *data; void *next; } signalbox_cleanup_t;
    typedef union { char size[64]; long align; } signalbox_semaphore_t;
    signalbox_cleanup_t *ngx_http_cleanup_add(void *request, size_t size);
    int sem_init(signalbox_semaphore_t *semaphore, int shared, unsigned int value);
    int sem_getvalue(signalbox_semaphore_t *semaphore, int *value);
    int sem_post(signalbox_semaphore_t *semaphore);
]])
local C = ffi.C
local ended = ffi.new("int[1]")
local semaphore_type, pointer = ffi.typeof("signalbox_semaphore_t"), ffi.typeof("void *")
-- A semaphore counts to 2^31 - 1.
local ROLL_OVER = 2 ^ 30

-- Both are there in nginx as Debian and OpenResty build it, which load modules; a build that hides them gets by
-- without.
local found, add, post = pcall(function()
    return C.ngx_http_cleanup_add, ffi.cast(pointer, C.sem_post)
end)

-- Whether until_end can be used.
_M.ends_are_told = found

function _M.of(address)
    local slot, count = slots[address], counts[address] or 0
    if not slot then
        return count
    end
    C.sem_getvalue(slot[2], ended)
    return count + slot[1] - ended[0]
end

-- A request is under way at `address` from now until it ends, however it does.
function _M.until_end(request, address)
    local cleanup = add(request, 0)
    if cleanup == nil then
        return
    end
    local slot = slots[address]
    if not slot then
        slot = { 0, semaphore_type(), 0 }
        C.sem_init(slot[2], 0, 0)
        slots[address] = slot
    end
    slot[1] = slot[1] + 1
    cleanup.data, cleanup.handler = slot[2], post
end

function _M.begin(address)
    counts[address] = (counts[address] or 0) + 1
    _M.total = _M.total + 1
end

function _M.finish(address)
    local count = counts[address]
    if count then
        -- No entry for what is idle: addresses come and go.
        counts[address] = count > 1 and count - 1 or nil
        _M.total = _M.total - 1
    end
end

-- How many are counted by until_end. What is idle since the last time goes: addresses come and go. A request that is
-- under way keeps its slot, whose memory it will write to.
function _M.sweep()
    local sum = 0
    for address, slot in pairs(slots) do
        C.sem_getvalue(slot[2], ended)
        local over = ended[0]
        sum = sum + slot[1] - over
        if slot[1] == over and slot[1] == slot[3] then
            slots[address] = nil
        elseif over > ROLL_OVER then
            slot[1] = slot[1] - over
            C.sem_init(slot[2], 0, 0)
        end
        slot[3] = slot[1]
    end
    return sum
end

-- Shows the worker's sum to whoever is asked for metrics.
function _M.publish(premature)
    if not premature then
        state:set("in_flight:" .. worker_id(), _M.total + _M.sweep(), FRESH)
    end
end

-- The sum of all workers.
function _M.sum()
    local sum = 0
    for id = 0, worker_count() - 1 do
        sum = sum + (state:get("in_flight:" .. id) or 0)
    end
    return sum
end

return _M
