-- Counts of requests in flight, when workers end without subtracting theirs.

local claims = require("signalbox.claims")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local dict = ngx.shared.signalbox_limits
-- Above the maximum of Linux, so there is no such process.
local DEAD = 4194305

local function left()
    local keys = dict:get_keys(0)
    table.sort(keys)
    return keys
end

return function(it)
    it("counts up and down, and keeps nothing that is zero", function()
        equal(claims.take("c|a|"), 1)
        equal(claims.take("c|a|"), 2)
        equal(claims.take("c|b|"), 1)
        claims.give_back("c|a|")
        equal(dict:get("c|a|"), 1)
        equal(dict:ttl("c|a|"), 0, "never expires")
        claims.give_back("c|a|")
        claims.give_back("c|b|")
        equal(left(), {})
        claims.give_back("c|b|")
        equal(left(), {})
    end)

    it("subtracts the requests of a worker that was killed, and only these", function()
        dict:set("s|1", DEAD)
        dict:set("p|" .. DEAD .. "|c|a|", 3)
        dict:set("c|a|", 3)
        dict:set("p|" .. DEAD .. "|c|only|here", 2)
        dict:set("c|only|here", 2)
        equal(claims.take("c|a|"), 4)
        claims.sweep()
        equal(dict:get("c|a|"), 1)
        equal(dict:get("c|only|here"), nil)
        equal(dict:get("s|1"), 0)
        claims.sweep()
        equal(dict:get("c|a|"), 1)
        claims.give_back("c|a|")
        equal(left(), { "s|1" })
    end)

    it("uses the slot of a worker that has ended again", function()
        dict:set("s|2", 1)
        claims.join()
        equal({ dict:get("s|1"), dict:get("s|2"), dict:get("s|3") }, { ngx.worker.pid(), 1, nil })
    end)

    it("leaves a slot to the worker that is about to take it", function()
        dict:flush_all()
        dict:set("s|1", 0)
        dict:set("take|1", true)
        local claims_of_another = dofile(package.searchpath("signalbox.claims", package.path))
        claims_of_another.join()
        equal({ dict:get("s|1"), dict:get("s|2"), dict:get("take|1") }, { 0, ngx.worker.pid(), true })
        dict:flush_all()
    end)

    it("takes a slot as soon as the memory is no longer full", function()
        for n = 1, 3 do
            dict:set("s|" .. n, 1)
        end
        local fillers = 0
        for _, size in ipairs({ 16000, 1000, 1 }) do
            while dict:safe_set("filler|" .. fillers, ("x"):rep(size)) do
                fillers = fillers + 1
            end
        end
        local claims_of_another = dofile(package.searchpath("signalbox.claims", package.path))
        claims_of_another.join()
        equal(dict:get("s|4"), nil)
        claims_of_another.sweep()
        equal(dict:get("s|4"), nil)
        for n = 0, fillers - 1 do
            dict:delete("filler|" .. n)
        end
        claims_of_another.sweep()
        equal(dict:get("s|4"), ngx.worker.pid())
        claims_of_another.sweep()
        equal(dict:get("s|5"), nil, "one slot is enough")
        dict:set("s|4", 1)
        claims_of_another.sweep()
        equal(dict:get("s|5"), ngx.worker.pid(), "another one when it was lost")
        dict:flush_all()
    end)

    it("subtracts what an earlier process with the same ID has left", function()
        dict:set("s|1", 0)
        dict:set("p|" .. ngx.worker.pid() .. "|c|a|", 2)
        dict:set("c|a|", 5)
        claims.join()
        equal(dict:get("c|a|"), 3)
        truthy(dict:get("s|1") == ngx.worker.pid())
        dict:flush_all()
    end)
end
