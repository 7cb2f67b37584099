-- Names that have to be looked up later, because too many lookups are open. Each is listed once, and the last one that
-- was added is the first one to be taken. A set alone would be searched from its beginning each time.

local setmetatable = setmetatable

local _M = {}
_M.__index = _M

function _M.new()
    return setmetatable({ listed = {}, list = {}, count = 0 }, _M)
end

function _M:add(name)
    if not self.listed[name] then
        self.listed[name] = true
        self.count = self.count + 1
        self.list[self.count] = name
    end
end

-- Removes a name and returns it; nil if there is none.
function _M:take()
    if self.count == 0 then
        return nil
    end
    local name = self.list[self.count]
    self.list[self.count], self.listed[name] = nil, nil
    self.count = self.count - 1
    return name
end

function _M:clear()
    self.listed, self.list, self.count = {}, {}, 0
end

return _M
