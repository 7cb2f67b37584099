-- Requests in flight at each instance, for hosts with a policy. Each worker counts its own: a shared count would cost
-- two locked operations per request, and a killed worker's part would never be subtracted.
--
-- @full counts in its access and log phases (begin, finish). The hot path has no log phase, because even an empty one
-- costs more than choosing an instance. For requests that have to be counted there, nginx reports the end
-- (until_end): when a request ends, nginx calls its cleanup handlers, which are C functions. sem_post of the C library
-- can be such a handler; it adds 1 to a semaphore. Requests in flight are the requests begun minus the semaphore's
-- value.
--
-- Once per second each worker publishes its counts in the shared dictionary: the sum for /metrics, and the count by
-- address for /edge/status.

local ffi = require("ffi")

local worker_id, worker_count = ngx.worker.id, ngx.worker.count
local state = ngx.shared.signalbox_state
local pairs, pcall, tonumber = pairs, pcall, tonumber
local concat, gmatch = table.concat, string.gmatch

local _M = { total = 0 }

-- The lifetime of a published count that its worker does not renew.
local COUNT_LIFETIME_SECONDS = 3

-- Maximum number of addresses that a worker publishes, because the dictionary is small. The sum includes the rest.
local MAX_SHOWN = 500

local counts = {}

-- Address → { begun, semaphore that counts the ended, begun at the last sweep }.
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

-- nginx of Debian and OpenResty exports both symbols, because it loads modules. Without them, the hot path passes
-- requests that have to be counted to @full.
local found, add, post = pcall(function()
    return C.ngx_http_cleanup_add, ffi.cast(pointer, C.sem_post)
end)

-- Whether until_end() can be used.
_M.can_watch_end = found

function _M.of(address)
    local slot, count = slots[address], counts[address] or 0
    if not slot then
        return count
    end
    C.sem_getvalue(slot[2], ended)
    return count + slot[1] - ended[0]
end

-- Counts a request as in flight at `address` from now until it ends in any way.
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
        -- Idle addresses have no entry, because addresses are added and removed all the time.
        counts[address] = count > 1 and count - 1 or nil
        _M.total = _M.total - 1
    end
end

-- Returns how many requests until_end() counts. Drops addresses that were idle since the last sweep. An address with
-- requests in flight keeps its slot, because their cleanup handlers write to its memory.
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

-- "address number address number …": this worker's requests in flight.
local function by_address()
    local parts, n = {}, 0
    local function add_one(address, count)
        if count > 0 and n < 2 * MAX_SHOWN then
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

-- Publishes this worker's counts.
function _M.publish(premature)
    if not premature then
        local sum = _M.total + _M.sweep()
        state:set("in_flight:" .. worker_id(), sum, COUNT_LIFETIME_SECONDS)
        state:set("in_flight_at:" .. worker_id(), sum > 0 and by_address() or "", COUNT_LIFETIME_SECONDS)
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

-- Address → requests in flight there from all workers, without idle addresses.
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
