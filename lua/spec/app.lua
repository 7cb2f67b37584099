-- The applications of nginx.conf. By default one answers with its name; a spec can give it another behavior.

local _M = { seen = {} }

local prefix = ngx.config.prefix()

-- name → function that answers in place of the default.
_M.behavior = {}

function _M.address(name)
    return "unix:" .. prefix .. name .. ".sock"
end

local aliases = 0

-- Another address of the same application. State of an address (ejections, requests in flight) outlives a test,
-- so a test that causes failures uses a separate address.
function _M.alias(name)
    aliases = aliases + 1
    local alias = name .. aliases
    os.execute(("ln -s %s.sock %s%s.sock"):format(name, prefix, alias))
    return _M.address(alias)
end

-- How many requests each application has had, since the last call.
function _M.counts()
    local seen = _M.seen
    _M.seen = {}
    return seen
end

function _M.serve(name)
    _M.seen[name] = (_M.seen[name] or 0) + 1
    local answer = _M.behavior[name]
    if answer then
        return answer()
    end
    ngx.print(name)
end

-- A behavior: answers with a status.
function _M.status(status)
    return function()
        ngx.status = status
        ngx.print("status ", status)
    end
end

-- A behavior: closes the connection without an answer.
function _M.close()
    return ngx.exit(444)
end

return _M
