-- The lists that nginx writes. Some need a fault at an exact moment, so a table replaces the request's variables here;
-- balancer_spec and full_spec read the lists of real requests.

local equal = require("runner").equal

local real_var, vars = ngx.var, {}
ngx.var = vars
local attempts = require("signalbox.attempts")
ngx.var = real_var

local function addresses(text)
    vars.upstream_addr = text
    local tried, last, count = attempts.addresses()
    local list = {}
    for address in pairs(tried or {}) do
        list[#list + 1] = address
    end
    table.sort(list)
    return { table.concat(list, " "), last, count }
end

local function last(statuses, connects)
    vars.upstream_status, vars.upstream_connect_time = statuses, connects
    return { attempts.last() }
end

return function(it)
    it("has no addresses before the first try", function()
        vars.upstream_addr = nil
        equal({ attempts.addresses() }, {})
    end)

    it("reads the addresses of all tries, over internal redirects too", function()
        equal(addresses("127.0.0.1:1"), { "127.0.0.1:1", "127.0.0.1:1", 1 })
        equal(addresses("127.0.0.1:1, [::1]:2 : unix:/run/a.sock"),
            { "127.0.0.1:1 [::1]:2 unix:/run/a.sock", "unix:/run/a.sock", 3 })
    end)

    it("ignores a declined try, and one that has no instance yet", function()
        equal(addresses(" : 127.0.0.1:1"), { "127.0.0.1:1", "127.0.0.1:1", 1 })
        equal(addresses("127.0.0.1:1 : "), { "127.0.0.1:1", "127.0.0.1:1", 1 })
    end)

    it("counts an address once", function()
        equal(addresses("127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:1"), { "127.0.0.1:1 127.0.0.1:2", "127.0.0.1:1", 2 })
    end)

    it("returns the status of the last try, and whether it was connected", function()
        equal(last("502", "-"), { "502", false })
        equal(last("502, 503", "-, 0.001"), { "503", true })
        equal(last("502 : 504", "0.000 : -"), { "504", false })
        equal(last("502, 504 : ", "-, 0.010 : "), { "504", true })
        equal(last("-", "0.001"), { nil, true })
    end)

    it("knows in a retry whether the try before it was connected", function()
        for connects, wanted in pairs({ ["- : "] = false, ["0.000 : "] = true, ["-, 0.001 : "] = true,
            ["0.001, - : "] = false }) do
            vars.upstream_connect_time = connects
            equal(attempts.was_connected(), wanted, connects)
        end
    end)


    it("distinguishes headers that are too large from a broken connection", function()
        attempts.max_header_bytes = 4096
        for _, case in ipairs({ { "4096", "-", true }, { "4095", "-", false }, { "9000", "0.001", false },
            { "0 : 4096 : ", "- : - : ", true }, { "4096, 10", "-, -", false }, { "10, 4096", "0.001, -", true } }) do
            vars.upstream_bytes_received, vars.upstream_header_time = case[1], case[2]
            equal(attempts.headers_too_large(), case[3], case[1] .. " " .. case[2])
        end
        vars.upstream_bytes_received = nil
        equal(attempts.headers_too_large(), false)
        attempts.max_header_bytes = 16384
    end)
end
