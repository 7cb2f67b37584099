-- Runs one spec in an nginx process. A spec file returns function(it): it(name, body), and body fails by error.

local _M = {}

local prefix = ngx.config.prefix()
local LEVELS = { "%[error%]", "%[crit%]", "%[alert%]", "%[emerg%]", "writing a global Lua variable" }

local function show(value, depth)
    if type(value) == "string" then
        return string.format("%q", value)
    elseif type(value) ~= "table" or (depth or 0) > 4 then
        return tostring(value)
    end
    local parts = {}
    for k, v in pairs(value) do
        parts[#parts + 1] = "[" .. show(k, 9) .. "]=" .. show(v, (depth or 0) + 1)
    end
    table.sort(parts)
    return "{" .. table.concat(parts, ", ") .. "}"
end
_M.show = show

-- Deep equality, by comparing the printed values.
function _M.equal(got, want, what)
    if show(got) ~= show(want) then
        error((what or "value") .. ": got " .. show(got) .. ", want " .. show(want), 2)
    end
end

function _M.truthy(got, what)
    if not got then
        error((what or "value") .. ": got " .. show(got), 2)
    end
end

-- Fails when `text` does not contain `part`.
function _M.contains(text, part, what)
    if type(text) ~= "string" or not text:find(part, 1, true) then
        error((what or "text") .. ": " .. show(part) .. " is not in " .. show(text), 2)
    end
end

-- Waits until condition() returns something true, and returns it. Its second value is the last state, for the message.
function _M.eventually(what, condition)
    ngx.update_time()
    local deadline = ngx.now() + 5
    while true do
        local result, state = condition()
        if result then
            return result
        end
        ngx.update_time()
        if ngx.now() > deadline then
            error("waited 5 s for " .. what .. ", last state: " .. show(state), 2)
        end
        ngx.sleep(0.002)
    end
end

-- ── nginx's error log ──────────────────────────────────────────────────────────────────────────────────────────────

local expected, allowed, log_read = {}, {}, 0

-- The error log since the last call of check_log().
local function new_log()
    local file = assert(io.open(prefix .. "error.log", "rb"))
    file:seek("set", log_read)
    local text = file:read("*a")
    file:close()
    return text
end

-- Of the current test: true when its part of the error log contains `text`.
function _M.logged(text)
    return new_log():find(text, 1, true) ~= nil
end

-- The current test causes an error whose line in nginx's log contains `text`. It fails without such a line.
function _M.expect_error(text)
    expected[#expected + 1] = text
end

-- From here to the end of the spec, lines that contain `text` are not faults. For errors that depend on timing.
function _M.allow_error(text)
    allowed[#allowed + 1] = text
end

local function check_log()
    local text, seen, unexpected = new_log(), {}, {}
    log_read = log_read + #text
    for line in text:gmatch("[^\n]+") do
        local bad = false
        for _, level in ipairs(LEVELS) do
            bad = bad or line:find(level) ~= nil
        end
        for _, part in ipairs(expected) do
            if bad and line:find(part, 1, true) then
                seen[part], bad = true, false
            end
        end
        for _, part in ipairs(allowed) do
            bad = bad and not line:find(part, 1, true)
        end
        unexpected[#unexpected + 1] = bad and line or nil
    end
    local problems = {}
    for _, part in ipairs(expected) do
        if not seen[part] then
            problems[#problems + 1] = "expected in nginx's error log: " .. part
        end
    end
    if #unexpected > 0 then
        problems[#problems + 1] = "unexpected in nginx's error log: " .. table.concat(unexpected, "\n    ")
    end
    expected = {}
    return #problems == 0, table.concat(problems, "\n    ")
end

-- ── requests ───────────────────────────────────────────────────────────────────────────────────────────────────────

local handler

-- Runs handle() as the content handler of a request, with `options` as for client.request, and returns the response.
-- For modules that need a request, or that answer one.
function _M.answered(options, handle)
    handler = handle
    options.socket = "request"
    local response = require("client").request(options)
    handler = nil
    return response
end

-- The same for what body() returns.
function _M.within_request(options, body)
    local results
    _M.answered(options, function()
        results = { xpcall(body, debug.traceback) }
        ngx.print("done")
    end)
    if not results then
        error("the request did not reach the spec", 2)
    elseif not results[1] then
        error(results[2], 2)
    end
    return unpack(results, 2, table.maxn(results))
end

function _M.in_request()
    return handler()
end

-- ── running ────────────────────────────────────────────────────────────────────────────────────────────────────────

local function globals()
    local set = {}
    for name in pairs(_G) do
        set[name] = true
    end
    return set
end

local function run(name, out)
    local passed, failed = 0, 0
    local before = globals()
    local function count(ok, test, err)
        if ok then
            passed = passed + 1
        else
            failed = failed + 1
            out:write("FAILED ", test, "\n    ", tostring(err), "\n")
        end
    end
    local ok, spec = xpcall(require, debug.traceback, name)
    if ok then
        spec(function(test, body)
            local fine, err = xpcall(body, debug.traceback)
            local clean, problems = check_log()
            count(fine and clean, name .. ": " .. test, (fine and "" or err .. "\n    ") .. problems)
        end)
    else
        count(false, name, spec)
    end
    local new = {}
    for global in pairs(globals()) do
        new[#new + 1] = not before[global] and global or nil
    end
    local clean, problems = check_log()
    if #new > 0 or not clean then
        count(false, name .. ": no new globals, and no error after the tests", table.concat(new, ", ") .. problems)
    end
    return passed, failed
end

function _M.start(name)
    assert(ngx.timer.at(0, function()
        local out = assert(io.open(prefix .. "result", "w"))
        _M.seed = tonumber(os.getenv("SEED") or "") or os.time()
        local ok, passed, failed = xpcall(run, debug.traceback, name, out)
        if not ok then
            out:write("FAILED ", name, "\n    ", passed, "\n")
            passed, failed = 0, 1
        end
        out:write(passed, " passed, ", failed, " failed\n")
        out:close()
        os.exit(0)
    end))
end

return _M
