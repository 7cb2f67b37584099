-- Requests under way at each instance, of hosts with a policy. Counted by each worker for itself: a count that all
-- share would cost two locked operations a request, and a worker that is killed would leave its part of it behind for
-- good.
--
-- @full counts with its log phase (begin, finish). The hot path has none: an empty one costs every request there more
-- than choosing an instance does. So for those requests that have to be counted nginx itself is asked to say when they
-- are over (until_end): it calls the clean-up handlers of a request that ends, and one that adds 1 to a number in
-- memory is there in every C library, sem_post. What was begun less what that semaphore counts is under way.
--
-- In the shared dictionary each worker only shows what it has, once a second: its sum for /metrics, and how many at
-- each address for whoever looks at instances.

local ffi = require("ffi")

local worker_id, worker_count = ngx.worker.id, ngx.worker.count
local state = ngx.shared.signalbox_state
local pairs, pcall, tonumber = pairs, pcall, tonumber
local concat, gmatch = table.concat, string.gmatch

local _M = { total = 0 }

-- How long a sum counts that its worker does not renew, seconds.
local FRESH = 3

-- Addresses that a worker shows: the dictionary is small, and what is beyond is still in the sum.
local SHOWN = 500

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

-- "address number address number …" of what this worker has under way.
local function by_address()
    local parts, n = {}, 0
    local function add_one(address, count)
        if count > 0 and n < 2 * SHOWN then
            parts[n + 1], parts[n + 2] = address, count
            n = n + 2
        end
    end
    for address in pairs(counts) do
        add_one(address, _M.of(address))
    end
    for address in pairs(slots) do
        if not counts[address] then
            add_one(address, _M.of(address))
        end
    end
    return concat(parts, " ")
end

-- Shows the worker's sum to whoever is asked for metrics, and what it is made of.
function _M.publish(premature)
    if not premature then
        local sum = _M.total + _M.sweep()
        state:set("in_flight:" .. worker_id(), sum, FRESH)
        state:set("in_flight_at:" .. worker_id(), sum > 0 and by_address() or "", FRESH)
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

-- Address → requests under way there, of all workers. What is idle is not in it.
function _M.everywhere()
    local sums = {}
    for id = 0, worker_count() - 1 do
        for address, count in gmatch(state:get("in_flight_at:" .. id) or "", "(%S+) (%d+)") do
            sums[address] = (sums[address] or 0) + tonumber(count)
        end
    end
    return sums
end

return _M
