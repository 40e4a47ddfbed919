-- Samples answers from shared memory for the sidecar, which decides what stays there. A lost report does no harm.

local wire = require "gatehouse.wire"

local random = math.random

local M = {}

-- sample_every is how many hits one in the report represents, on average. Steps are random, because the order of
-- requests may be periodic.
local sample_every = 8

-- max_report bounds a report, bytes: a few hundred keys, and half of what the sidecar accepts.
local max_report = 32 * 1024

-- report_ticks is how many ticks a report covers: one second.
local report_ticks = 5

local ticks = 0 -- since the last report
local skip = 0 -- hits until one is reported
local keys, count, size = {}, 0, 0

-- hit is called for each answer from shared memory.
function M.hit(key)
  if skip > 0 then
    skip = skip - 1
    return
  end
  skip = random(0, 2 * sample_every - 2) -- sample_every - 1 on average
  local more = size + 2 + #key
  if more <= max_report then
    count, size = count + 1, more
    keys[count] = key
  end
end

-- tick sends the report once per second, if it has a hit.
function M.tick(calls)
  ticks = ticks + 1
  if ticks < report_ticks or count == 0 then
    return
  end
  ticks = 0
  local report = wire.begin_hits()
  for i = 1, count do
    report = wire.append_hit(report, keys[i])
  end
  keys, count, size = {}, 0, 0
  calls:send_hits(report)
end

return M
