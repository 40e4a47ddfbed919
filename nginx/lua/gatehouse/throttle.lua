-- The sources from which the sidecar refuses credentials of new devices for a while. In a flood each such call would
-- get the same answer, and cost more than the answer. Times are unix ms.

local network = require("gatehouse.address").network

local floor, min, next = math.floor, math.min, next

local M = {}
M.__index = M

-- max_throttled bounds the throttled sources of a worker. Beyond it, each request from another source costs a call.
local max_throttled = 8192

function M.new()
  return setmetatable({ until_ms = {}, ms = {}, count = 0 }, M)
end

-- left_ms returns how long a network is still throttled. If more than the throttle's length remains, the clock was set
-- back, and the throttle is over.
local function left_ms(self, key, now_ms)
  local until_ms = self.until_ms[key]
  if not until_ms then
    return 0
  end
  local left = until_ms - now_ms
  if left < 0 or left > self.ms[key] then
    return 0
  end
  return left
end

-- add throttles a source for ms milliseconds.
function M:add(source, now_ms, ms)
  if ms == 0 then
    return
  end
  local key = network(source)
  if not key then
    return
  end
  if not self.until_ms[key] then
    if self.count >= max_throttled then
      return
    end
    self.count = self.count + 1
  end
  self.until_ms[key], self.ms[key] = now_ms + ms, ms
end

-- retry_after returns how long a source is still throttled, in seconds rounded up; 0 if it isn't.
function M:retry_after(source, now_ms)
  if self.count == 0 then
    return 0
  end
  local key = network(source)
  if not key then
    return 0
  end
  return min(floor((left_ms(self, key, now_ms) + 999) / 1000), 65535)
end

-- sweep removes sources that are no longer throttled.
function M:sweep(now_ms)
  for key in next, self.until_ms do
    if left_ms(self, key, now_ms) == 0 then
      self.until_ms[key], self.ms[key], self.count = nil, nil, self.count - 1
    end
  end
end

-- clear removes all sources.
function M:clear()
  self.until_ms, self.ms, self.count = {}, {}, 0
end

return M
