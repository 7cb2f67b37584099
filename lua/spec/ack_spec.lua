-- Counts the polls. The module takes the function when it is loaded.
local polls, sleep = 0, ngx.sleep
ngx.sleep = function(seconds) -- luacheck: ignore 122
    polls = polls + 1
    return sleep(seconds)
end
local ack = require("signalbox.ack")
ngx.sleep = sleep -- luacheck: ignore 122
local json = require("signalbox.json")
local runner = require("runner")
local equal, truthy = runner.equal, runner.truthy

local state = ngx.shared.signalbox_state

return function(it)
    it("shows a worker that has published nothing with serial 0", function()
        local one = ack.workers()[1]
        equal({ one.serial, one.accepted, one.epoch }, { 0, false, "" })
        equal(json.decode(ack.await(1, 0)).reached, false)
    end)

    it("publishes the acknowledged serial, and keeps it when only the state changes", function()
        ack.join()
        ack.publish(7, 8, "bb aa", true, nil)
        local one = ack.workers()[1]
        equal({ one.serial, one.seen, one.epoch, one.accepted, one.alarm, one.pid },
            { 7, 8, "bb", true, "", ngx.worker.pid() })
        -- Neither a repeated serial nor a change of state wakes the requests that wait.
        local acks = state:get("acks")
        ack.publish(7, 8, "bb aa", true, nil)
        ack.publish(false, 9, "bb aa", false, "table_regressed")
        equal(state:get("acks"), acks)
        local two = ack.workers()[1]
        equal({ two.serial, two.seen, two.at_ms, two.accepted, two.alarm },
            { 7, 9, one.at_ms, false, "table_regressed" })
    end)

    it("takes the lowest serial of all workers, and any worker's epoch", function()
        equal(ack.lowest({ { serial = 5 }, { serial = 3 }, { serial = 4 } }), 3)
        equal(ack.epoch({ { epoch = "" }, { epoch = "bb" } }), "bb")
        equal(ack.epoch({ { epoch = "" } }), "")
    end)

    it("does not read the line of an earlier worker with the same id", function()
        state:set("pid:1", "99|1|1|1|99||old")
        equal(ack.workers()[1].serial, 7)
        state:set("worker:0", 1)
        equal(ack.workers()[1].serial, 99)
        ack.join()
        equal(ack.workers()[1].serial, 7)
    end)

    it("answers immediately without a wanted serial, or when it is reached", function()
        local answer = json.decode(ack.await(nil, 30))
        equal({ answer.reached, answer.serial, answer.epoch }, { true, 7, "bb" })
        equal({ answer.workers[1].serial, answer.workers[1].accepted }, { 7, false })
        equal(json.decode(ack.await(7, 30)).reached, true)
        equal(json.decode(ack.await(8, 0)).reached, false)
        -- Less than what a timer can wait for.
        equal(json.decode(ack.await(8, 0.0004)).reached, false)
    end)

    it("wakes a waiting request when the last worker acknowledges, and does not poll until then", function()
        local answer
        local waiting = ngx.thread.spawn(function()
            answer = json.decode(ack.await(8, 30))
        end)
        truthy(not answer, "it waits")
        ack.publish(8, 9, "bb aa", true, nil)
        assert(ngx.thread.wait(waiting))
        equal({ answer.reached, answer.serial, polls }, { true, 8, 0 })
    end)
end
