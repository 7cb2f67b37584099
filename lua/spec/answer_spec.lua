local answer = require("signalbox.answer")
local json = require("signalbox.json")
local runner = require("runner")
local contains, equal, truthy = runner.contains, runner.equal, runner.truthy

local DETAIL = 'A <b>"detail"</b> & more.'

local function problem(headers, status, retry_after, variables)
    return runner.answered({ headers = headers }, function()
        for name, value in pairs(variables or {}) do
            ngx.var[name] = value
        end
        return answer.problem(status or 404, "a_code", DETAIL, retry_after)
    end)
end

return function(it)
    it("answers with a problem document and its code in a header", function()
        local response = problem({ ["X-Request-ID"] = "client-id-1" })
        equal({ response.status, response.headers["content-type"], response.headers["x-signalbox-error"] },
            { 404, "application/problem+json", "a_code" })
        equal(json.decode(response.body), { type = "about:blank", title = "Not Found", status = 404, code = "a_code",
            detail = DETAIL, request_id = "client-id-1" })
        equal(response.headers["retry-after"], nil)
        equal(response.headers.vary, "Accept")
    end)

    it("sends Retry-After when it is known", function()
        local response = problem(nil, 503, 7)
        equal({ response.status, response.headers["retry-after"] }, { 503, "7" })
    end)

    it("answers a browser with a page in which everything is escaped", function()
        local response = problem({ Accept = "text/html,application/xhtml+xml,*/*;q=0.8" })
        equal({ response.status, response.headers["content-type"], response.headers["x-signalbox-error"] },
            { 404, "text/html; charset=utf-8", "a_code" })
        contains(response.body, "A &lt;b&gt;&quot;detail&quot;&lt;/b&gt; &amp; more.")
        truthy(not response.body:find("<b>", 1, true), "no markup of the detail")
        equal(response.headers.vary, "Accept")
    end)

    it("prefers the type that the client names first", function()
        equal(problem({ Accept = "application/json, text/html" }).headers["content-type"], "application/problem+json")
        equal(problem({ Accept = "text/html, application/json" }).headers["content-type"], "text/html; charset=utf-8")
        equal(problem({ Accept = "*/*" }).headers["content-type"], "application/problem+json")
    end)

    -- A real gRPC call needs HTTP/2, which the client of the specs does not speak: the variable is set by hand.
    it("answers a gRPC call with the status that gRPC assigns to an HTTP code", function()
        for status, wanted in pairs({ [400] = "3", [403] = "7", [404] = "12", [405] = "12", [413] = "8", [415] = "3",
            [429] = "8", [502] = "14", [503] = "14", [504] = "14" }) do
            local response = problem(nil, status, nil, { edge_grpc = "1" })
            equal({ response.status, response.headers["grpc-status"], response.headers["grpc-message"], response.body },
                { 200, wanted, DETAIL, "" }, "HTTP " .. status)
        end
    end)
end
