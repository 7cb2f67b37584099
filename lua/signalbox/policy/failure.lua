-- The part of a policy for failing or missing instances.
--
--   {"retries":{"attempts":3, "budget_percent":20, "timeout_ms":10000},
--    "ejection":{"failures":5, "first_ms":1000, "longest_ms":60000} | false,
--    "error_pages":{"503":{"body":"…", "content_type":"text/html"}},
--    "hold_ms":5000, "pause":{"wait_ms":30000, "most":1000}, "timeouts":{"connect_ms":…, "read_ms":…, "send_ms":…},
--    "buffering":true}

local find, pairs, tonumber = string.find, pairs, tonumber

local _M = {}

local HOUR_MS = 3600 * 1000
local MAX_HOLD_MS = 60 * 1000

-- Defaults of a pause: how long a request waits, and the maximum number of waiting requests per worker.
local PAUSE_MS, PAUSED = 30000, 1000

-- Defaults, which also apply to hosts without a policy.
_M.RETRIES = { budget_percent = 20 }
_M.EJECTION = { failures = 5, first_ms = 1000, longest_ms = 60000 }

function _M.read(given, take, rules)
    local retries = take.object(given.retries, "retries") or {}
    -- The maximum number of tries, including the first. Without it, each instance is tried once.
    rules.attempts = take.integer(retries.attempts, "retries.attempts", 1, 100)
    rules.budget_percent = take.number(retries.budget_percent, "retries.budget_percent", 0, 100)
        or _M.RETRIES.budget_percent
    rules.retry_timeout = take.number(retries.timeout_ms, "retries.timeout_ms", 1, HOUR_MS)
    rules.ejection = _M.EJECTION
    if given.ejection == false then
        rules.ejection = nil
    else
        local ejection = take.object(given.ejection, "ejection") or {}
        rules.ejection = {
            failures = take.integer(ejection.failures, "ejection.failures", 1, 1000) or _M.EJECTION.failures,
            first_ms = take.number(ejection.first_ms, "ejection.first_ms", 1, HOUR_MS) or _M.EJECTION.first_ms,
            longest_ms = take.number(ejection.longest_ms, "ejection.longest_ms", 1, 24 * HOUR_MS)
                or _M.EJECTION.longest_ms,
        }
    end
    rules.hold_ms = take.number(given.hold_ms, "hold_ms", 1, MAX_HOLD_MS)
    for status, value in pairs(take.object(given.error_pages, "error_pages") or {}) do
        local page = take.object(value, "error_pages")
        local body = page and take.text(page.body, "error_pages.body")
        local content_type = page and page.content_type ~= nil
            and take.header_value(page.content_type, "error_pages.content_type") or "text/html; charset=utf-8"
        if body and find(status, "^[45]%d%d$") then
            rules.error_pages = rules.error_pages or {}
            rules.error_pages[tonumber(status)] = { body = body, content_type = content_type }
        else
            take.refuse("error_pages", "statuses from 400 to 599 with a body")
        end
    end
    local pause = take.object(given.pause, "pause")
    if pause then
        rules.pause = {
            wait_ms = take.number(pause.wait_ms, "pause.wait_ms", 1, MAX_HOLD_MS) or PAUSE_MS,
            most = take.integer(pause.most, "pause.most", 0, 4096) or PAUSED,
        }
    end
    rules.buffering = take.boolean(given.buffering, "buffering")
    local timeouts = take.object(given.timeouts, "timeouts")
    if timeouts then
        local function seconds(name)
            local value = take.number(timeouts[name], "timeouts." .. name, 1, 24 * HOUR_MS)
            return value and value / 1000
        end
        rules.connect_timeout, rules.read_timeout = seconds("connect_ms"), seconds("read_ms")
        rules.send_timeout = seconds("send_ms")
        rules.timeouts = (rules.connect_timeout or rules.read_timeout or rules.send_timeout) ~= nil
    end
end

return _M
