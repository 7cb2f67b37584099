-- Goes through the specs in one nginx process. A spec file returns function(it): it(name, body), and body fails by
-- error. Modules that keep state (routes, shared) are loaded anew for each file.

local _M = {}

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

-- Deep equality, through how the values look.
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

local function forget_modules()
    for name in pairs(package.loaded) do
        if name:find("^signalbox%.") then
            package.loaded[name] = nil
        end
    end
    for _, dict in pairs(ngx.shared) do
        dict:flush_all()
        dict:flush_expired()
    end
end

local function globals()
    local set = {}
    for name in pairs(_G) do
        set[name] = true
    end
    return set
end

local function spec_files(folder)
    local files = {}
    local list = assert(io.popen("ls '" .. folder .. "'"))
    for name in list:lines() do
        files[#files + 1] = name:match("^(.*_spec)%.lua$")
    end
    list:close()
    return files
end

local function run_all(folder, out)
    local passed, failed = 0, 0
    local before = globals()
    local function count(ok, name, err)
        if ok then
            passed = passed + 1
        else
            failed = failed + 1
            out:write("FAILED ", name, "\n    ", tostring(err), "\n")
        end
    end
    for _, file in ipairs(spec_files(folder)) do
        forget_modules()
        local ok, spec = xpcall(require, debug.traceback, file)
        if ok then
            spec(function(name, body)
                local fine, err = xpcall(body, debug.traceback)
                count(fine, file .. ": " .. name, err)
            end)
        else
            count(false, file, spec)
        end
    end
    local new = {}
    for name in pairs(globals()) do
        new[#new + 1] = not before[name] and name or nil
    end
    count(#new == 0, "no new globals", table.concat(new, ", "))
    out:write(passed, " passed, ", failed, " failed\n")
    return failed
end

function _M.start(folder, result)
    assert(ngx.timer.at(0, function()
        local out = assert(io.open(result, "w"))
        _M.seed = tonumber(os.getenv("SEED") or "") or os.time()
        out:write("seed ", _M.seed, "\n")
        local ok, failed = xpcall(run_all, debug.traceback, folder, out)
        if not ok then
            out:write(failed, "\n0 passed, 1 failed\n")
        end
        out:close()
        os.exit(ok and failed == 0 and 0 or 1)
    end))
end

return _M
