-- Answers HTTP-01 challenges of ACME servers (RFC 8555, 8.3), for every host name, regardless of its policy. The
-- pacemaker puts an answer into the route table before it asks the server to validate, and waits until every router
-- has it.
--
-- The replica is asked for each such request, without a cache: they are rare, and an answer is used for a few
-- seconds. A challenge that is not in the table belongs to an ACME client behind the edge, so the request is
-- routed as usual.

local link = require("signalbox.link")
local resp = require("signalbox.resp")
local semaphore = require("ngx.semaphore")
local usual = require("signalbox.usual")

local match, type = string.match, type
local var = ngx.var

local _M = {}

-- The path is matched against the request line as the client sent it. nginx's normalized path is different for
-- "/admin/../.well-known/acme-challenge/x", and an application could interpret that in a third way.
local PATH = "^/%.well%-known/acme%-challenge/([%w_-]+)$"
-- A token has at least 128 bits; public servers use 43 characters.
local MAX_TOKEN = 256
local TIMEOUT_SECONDS = 0.25
-- Maximum number of open lookups. A flood of invented tokens must not delay the lookups of hosts.
local MAX_OPEN = 100

local open = 0

local function answered(value, kind, question)
    open = open - 1
    question.value = kind == "$" and type(value) == "string" and value or nil
    question.ready:post(1)
end

-- Returns the answer that the table has for a token, or nil.
local function look_up(token)
    if open >= MAX_OPEN then
        return nil
    end
    local question = { ready = semaphore.new() }
    if not link.send(resp.command("GET", "challenge:" .. token), answered, question) then
        return nil
    end
    open = open + 1
    question.ready:wait(TIMEOUT_SECONDS)
    return question.value
end

-- Answers the request, or passes it on to the location `otherwise`.
function _M.serve(otherwise)
    local token = match(var.request_uri, PATH)
    local method = ngx.req.get_method()
    local answer = token and #token <= MAX_TOKEN and (method == "GET" or method == "HEAD") and look_up(token)
    if not answer then
        usual.begin()
        return ngx.exec(otherwise)
    end
    ngx.header["Content-Type"] = "application/octet-stream"
    ngx.header["Content-Length"] = #answer
    ngx.header["Cache-Control"] = "no-store"
    ngx.print(answer)
end

return _M
