-- Follows the route table of the replica: decides whether the table is accepted, and when a change has been applied.
-- The replica *pushes* the name of each changed key (client-side caching of Redis), and the worker reads the key again.
--
--   connection opened, or FLUSHALL pushed ─▶ not trusted ─▶ ROLE, DBSIZE, GET epoch, GET serial ─▶ lineage.lua
--        accepted ─▶ trusted: all cached records become suspect, and are read again in the background (the sweep)
--        rejected ─▶ alarm; nothing from Redis is applied until its epoch or serial changes
--
-- Losing trust never removes a record: requests are served from what is known.
--
-- Acknowledgement of a serial: Redis sends the pushes of one change in the order of the tracked prefixes, `serial`
-- last. On that push the worker sends GET serial, and after its reply a PING. At the PONG, every push of a change up to
-- that serial has been handled. Acknowledging at the reply to GET would be too early: Redis sends pushes at the end of
-- its event loop, so the reply can already include a change whose pushes are still to come.

local ack = require("signalbox.ack")
local backlog = require("signalbox.backlog")
local certificates = require("signalbox.certificates")
local held = require("signalbox.held")
local hostname = require("signalbox.hostname")
local lineage = require("signalbox.lineage")
local link = require("signalbox.link")
local lookups = require("signalbox.lookups")
local resp = require("signalbox.resp")
local routes = require("signalbox.routes")
local shared = require("signalbox.shared")

local timer_at, timer_every, worker_id = ngx.timer.at, ngx.timer.every, ngx.worker.id
local log, WARN, NOTICE, ERR = ngx.log, ngx.WARN, ngx.NOTICE, ngx.ERR
local match, sub, find = string.match, string.sub, string.find
local null, next_suspect = resp.null, routes.next_suspect

local _M = {}

-- Maximum number of concurrent background lookups: few enough that the lookup of a request is delayed by microseconds
-- only.
local SWEEP_WIDTH = 64
local VERIFY_RETRY = 0.1
local TICK = 1

local ROLE, DBSIZE = resp.command("ROLE"), resp.command("DBSIZE")
local GET_EPOCH = resp.command("GET", "epoch")
local GET_SERIAL = resp.command("GET", "serial")

-- The lineage of the accepted table, and its highest known serial.
local epoch, serial
local alarm
local operator_accepts = 0

-- State of the current verification and acknowledgement. Replies of an earlier `attempt` are ignored.
local attempt = 0
local shown_epoch, shown_failed, shown_apart
local ack_wanted, ack_running = false, false

local verify

local function report(acknowledged)
    ack.publish(acknowledged or false, serial, epoch, link.connected and lookups.trusted, alarm)
end

-- ── the sweep ──────────────────────────────────────────────────────────────────────────────────────────────────────

-- Changed names that could not be looked up. Until they are, shared memory has them as they were before the change.
local missed = backlog.new()

-- A request may wait for a name that did not exist when the table was trusted before.
local function add_missed(name)
    if hostname.valid_name(name) then
        missed:add(name)
    end
end

local KINDS = { "plain", "special", "wildcards" }
local sweep = { kind = 1, name = nil, slot = 0, slots = 0, out = 0 }

local function begin_sweep()
    sweep.kind, sweep.name, sweep.out = 1, nil, 0
    -- One worker also looks up the hosts that are only in shared memory: they have missed the same changes.
    sweep.slot, sweep.slots = 0, worker_id() == 0 and shared.slots() or 0
end

-- The next name to look up. Suspects come first, because they are in use.
local function next_name()
    local changed_name = missed:take()
    if changed_name then
        return changed_name
    end
    while sweep.kind <= #KINDS do
        sweep.name = next_suspect(KINDS[sweep.kind], sweep.name)
        if sweep.name then
            return sweep.name
        end
        sweep.kind = sweep.kind + 1
    end
    while sweep.slot < sweep.slots do
        sweep.slot = sweep.slot + 1
        local name = shared.at(sweep.slot)
        if name and routes.known(name) == nil then
            return name
        end
    end
    return nil
end

local start_ack

local function pump()
    if not lookups.trusted then
        return
    end
    while sweep.out < SWEEP_WIDTH do
        local name = next_name()
        if not name then
            break
        end
        if not lookups.is_open(name) then
            local entry = lookups.ask(name)
            if not entry then
                -- The next answer, or the next tick, continues.
                missed:add(name)
                return
            end
            entry.sweep = routes.sweep
            sweep.out = sweep.out + 1
        end
    end
    if routes.suspects == 0 and ack_wanted then
        start_ack()
    end
end

lookups.answered = function(entry)
    if entry.sweep == routes.sweep then
        sweep.out = sweep.out - 1
    end
    pump()
end

-- ── acknowledgement ────────────────────────────────────────────────────────────────────────────────────────────────

local function pong(value, _, reached)
    ack_running = false
    if value and lookups.trusted then
        report(reached)
    end
    if ack_wanted then
        start_ack()
    end
end

local function ack_serial(value, kind, of_attempt)
    if of_attempt ~= attempt or not value then
        ack_running = false
        return
    end
    if kind == "-" then
        ack_running = false
        return verify()
    end
    local shown = lineage.serial(value)
    if lineage.refusal(nil, serial, nil, shown) then
        ack_running = false
        return verify()
    end
    serial = shown or serial
    shared.accept_table(nil, shown)
    if not (shown and link.send(resp.command("PING"), pong, shown)) then
        ack_running = false
    end
end

function start_ack()
    if ack_running or routes.suspects > 0 or not lookups.trusted then
        return
    end
    ack_wanted = false
    ack_running = link.send(GET_SERIAL, ack_serial, attempt)
end

-- ── whether the table is accepted ──────────────────────────────────────────────────────────────────────────────────

local function retry_verify(premature, of_attempt)
    if not premature and of_attempt == attempt and link.connected then
        verify()
    end
end

local function judge(shown_serial)
    local refusal = lineage.refusal(epoch, serial, shown_epoch, shown_serial)
    if refusal then
        if alarm ~= refusal then
            log(WARN, "the table in Redis is rejected (", refusal, "): it has epoch ", shown_epoch or "none",
                " and serial ", shown_serial or "none", "; accepted were epoch ", epoch or "none", " and serial ",
                serial or "none", ". Routing continues with the last good table. Seed the primary again, or accept ",
                "its table with POST /edge/accept and the header `X-Signalbox-Accept: table`.")
        end
        alarm = refusal
        report()
        return
    end
    if alarm then
        log(NOTICE, "the table in Redis is accepted again, serial ", shown_serial or "none")
    end
    alarm = nil
    epoch, serial = shown_epoch, shown_serial
    shared.accept_table(epoch, serial)
    lookups.trusted = true
    routes.suspect_all()
    certificates.refresh()
    missed:clear()
    held.each(add_missed)
    begin_sweep()
    ack_wanted = true
    report()
    pump()
end

-- The table of a replica that has just started, and has not copied its primary yet, seems to be empty.
local function verify_role(value, kind, of_attempt)
    if of_attempt == attempt then
        shown_apart = kind == "*" and value[1] == "slave" and value[4] ~= "connected"
    end
end

local function verify_size(value, kind, of_attempt)
    if of_attempt == attempt then
        shown_failed = not value or kind == "-" or (shown_apart and value == 0)
    end
end

local function verify_epoch(value, kind, of_attempt)
    if of_attempt == attempt then
        shown_failed = shown_failed or not value or kind == "-"
        shown_epoch = not shown_failed and value ~= null and match(value, "%S") and value or nil
    end
end

local function verify_serial(value, kind, of_attempt)
    if of_attempt ~= attempt or not value then
        return
    end
    if shown_failed or kind == "-" then
        -- Redis is loading, or has not copied its primary yet. The table is unknown, not wrong: try again, without an
        -- alarm.
        local ok, err = timer_at(VERIFY_RETRY, retry_verify, attempt)
        if not ok and err ~= "process exiting" then
            log(ERR, "cannot schedule the verification of the table: ", err)
        end
        return
    end
    judge(lineage.serial(value))
end

function verify()
    attempt = attempt + 1
    lookups.trusted = false
    ack_running = false
    link.send(ROLE, verify_role, attempt)
    link.send(DBSIZE, verify_size, attempt)
    link.send(GET_EPOCH, verify_epoch, attempt)
    link.send(GET_SERIAL, verify_serial, attempt)
end

-- ── pushes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

local function changed(name)
    if not lookups.trusted then
        -- The table of this push is not accepted (yet). When it is accepted, every record is read again anyway.
        return
    end
    local had = routes.drop(name)
    lookups.touch(name)
    if not hostname.is_wildcard(name) then
        shared.drop_alias(name)
    end
    -- A name in use is read again immediately, so that the next request finds it and shared memory stays current. A
    -- name that is only in shared memory is read by one worker. A request may wait for a name that does not exist yet.
    if had or held.awaits(name) or (worker_id() == 0 and shared.has(name)) then
        if not lookups.ask(name) then
            missed:add(name)
        end
    end
end

local function pushed_key(key)
    if key == "serial" then
        if lookups.trusted then
            ack_wanted = true
            start_ack()
        else
            verify()
        end
        return
    elseif key == "epoch" then
        return verify()
    end
    local colon = find(key, ":", 1, true)
    local name = colon and sub(key, colon + 1)
    if name and hostname.valid_name(name) then
        if sub(key, 1, colon) == "cert:" then
            certificates.changed(name)
        else
            changed(name)
        end
    end
end

local owner = { opened = verify }

function owner.pushed(push)
    if push[1] ~= "invalidate" then
        return
    end
    local keys = push[2]
    if keys == null then
        -- Everything was flushed. A replica does this when it begins to copy its primary, so routes may still exist.
        return verify()
    end
    for i = 1, #keys do
        pushed_key(keys[i])
    end
end

function owner.lost()
    lookups.trusted = false
    ack_running = false
    attempt = attempt + 1
    report()
end

-- ── the worker's life ──────────────────────────────────────────────────────────────────────────────────────────────

local function tick(premature)
    if premature then
        return
    end
    if shared.operator_accepts() ~= operator_accepts then
        operator_accepts = shared.operator_accepts()
        epoch, serial = nil, nil
        log(NOTICE, "an operator accepts the table in Redis")
        if link.connected then
            verify()
        end
    end
    -- A sweep that stopped halfway (Redis was busy) is continued.
    if lookups.trusted and routes.suspects > 0 and sweep.out == 0 then
        begin_sweep()
        pump()
    elseif missed.count > 0 then
        pump()
    end
    certificates.continue()
    report()
end

-- login: as in link.lua.
function _M.start(address, login)
    epoch, serial = shared.accepted_table()
    operator_accepts = shared.operator_accepts()
    report()
    local ok, err = timer_every(TICK, tick)
    if not ok then
        log(ERR, "cannot start the worker's tick: ", err)
    end
    link.start(address, owner, login)
end

-- Returns the alarm, whether the replica has accepted this worker's connection, and whether its table is accepted.
function _M.state()
    return alarm, link.ready, lookups.trusted
end

return _M
