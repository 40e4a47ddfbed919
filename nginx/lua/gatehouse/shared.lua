-- The records of shared memory. Each region has a dictionary, so that a lookup waits only for those of its own region,
-- and its records don't displace others: a dictionary that is full refuses records, and never evicts any.

local wire = require "gatehouse.wire"

local find_body = wire.find_body
local next = next

local M = {}

local dicts = {
  state = ngx.shared.gatehouse_state,
  objects = ngx.shared.gatehouse_objects,
  bodies = ngx.shared.gatehouse_bodies,
  verdicts = ngx.shared.gatehouse_verdicts,
}
for _, region in ipairs { "state", "objects", "bodies", "verdicts" } do
  if not dicts[region] then
    error("gatehouse: lua_shared_dict gatehouse_" .. region .. " is missing", 0)
  end
end

-- record returns the record at a place, nil if there is none. The key is the index in decimal: as four bytes it would
-- save a tenth of the lookup's 0.24 µs.
local function record(region, index)
  return (dicts[region]:get(index))
end
M.record = record

-- set_record writes a record, and returns why that failed. A dictionary writes a value of the same length in place, and
-- a worker that is killed then would leave half of it. A value of another length is copied before it takes the old
-- one's place, so a record that has the old one's length gets a byte more, which no reader looks at. A body is removed
-- first, because it can be large, and no object names its slot while it is written. The state is written in place:
-- every half of two heartbeats is right.
function M.set_record(region, index, value)
  local dict = dicts[region]
  if region == "bodies" then
    dict:delete(index)
  elseif region ~= "state" then
    local old = dict:get(index)
    if old and #old == #value then
      value = value .. "\0"
    end
  end
  local ok, err = dict:safe_set(index, value)
  if not ok then
    return err
  end
end

-- guard_key is the key of the guard: a number that shows whether objects were written since the last read. It is odd
-- while they are being written. No worker may use kept answers then, so that none serves an old object after another
-- has served the new one.
M.guard_key = "guard"

-- guard returns the guard's value, nil while objects are being written, or if it is unknown.
function M.guard()
  local value = dicts.state:get("guard")
  if value and value % 2 == 0 then
    return value
  end
end

-- max_bodies bounds the bodies that a worker keeps, in bytes.
local max_bodies = 16 * 1024 * 1024

-- The bodies that this worker has read, by slot, so that a body is copied out of shared memory once per worker and
-- version. One is used only if it has the stamp that the object names now.
local epochs, stamps, bodies, size = {}, {}, {}, 0

local function drop(slot)
  if bodies[slot] then
    size = size - #bodies[slot]
    epochs[slot], stamps[slot], bodies[slot] = nil, nil, nil
  end
end

-- body returns the bytes of a variant, nil if its slot has another body by now.
function M.body(epoch, variant)
  local slot = variant.slot
  local kept = bodies[slot]
  if kept and stamps[slot] == variant.stamp and epochs[slot] == epoch and #kept == variant.length then
    return kept
  end
  local body = find_body(record("bodies", slot), epoch, variant)
  if not body then
    return nil
  end
  drop(slot)
  -- Which ones go doesn't matter: these are enough if the hot set fits, and harmless if it doesn't.
  while size + #body > max_bodies do
    drop((next(bodies)))
  end
  epochs[slot], stamps[slot], bodies[slot], size = epoch, variant.stamp, body, size + #body
  return body
end

return M
