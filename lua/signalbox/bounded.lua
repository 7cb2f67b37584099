-- A map that retains the last `limit` to 2 × `limit` names. It has two generations: when the young one has
-- `limit` names, it becomes the old one, and the previous old one is dropped. Unlike an LRU it has no lists to relink,
-- a name costs one slot, and a flood of random names evicts only names of the same map.

local setmetatable = setmetatable

local _M = {}
_M.__index = _M

function _M.new(limit)
    return setmetatable({ young = {}, old = {}, count = 0, limit = limit }, _M)
end

function _M:get(name)
    local value = self.young[name]
    if value == nil then
        value = self.old[name]
        if value ~= nil then
            self:set(name, value)
        end
    end
    return value
end

function _M:set(name, value)
    if self.young[name] == nil then
        if self.count >= self.limit then
            self.old, self.young, self.count = self.young, {}, 0
        end
        self.count = self.count + 1
    end
    self.young[name] = value
end

-- `count` is not changed: it only determines when the next generation begins.
function _M:delete(name)
    self.young[name] = nil
    self.old[name] = nil
end

function _M:clear()
    self.young, self.old, self.count = {}, {}, 0
end

-- Names added since the last generation began; for the status page.
function _M:size()
    return self.count
end

return _M
