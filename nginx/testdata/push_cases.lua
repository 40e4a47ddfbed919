-- What push_test.go needs of shared memory. Bytes are base64.

local counters = require "gatehouse.counters"
local push = require "gatehouse.push"
local shared = require "gatehouse.shared"
local wire = require "gatehouse.wire"

local dict = ngx.shared.gatehouse_state

local M = {}

-- reset empties shared memory but for a state record, if there is one, and forgets the counters.
function M.reset(state)
  counters.flush()
  for name, d in pairs(ngx.shared) do
    if name:match("^gatehouse_") then
      d:flush_all()
      d:flush_expired()
    end
  end
  push.max_wait_s = 2.5
  if state then
    dict:set(0, ngx.decode_base64(state))
  end
end

-- record returns the record at a place, nil if there is none.
function M.record(region, index)
  local rec = shared.record(region, index)
  return rec and ngx.encode_base64(rec)
end

-- guard returns the guard as readers see it, and as it is stored.
function M.guard()
  return shared.guard(), dict:get("guard")
end

function M.counters()
  counters.flush()
  local flushed = ngx.shared.gatehouse_counters
  return flushed:get 'gatehouse_batches_total{result="applied"}' or 0,
    flushed:get 'gatehouse_batches_total{result="refused"}' or 0
end

-- crash leaves what a worker leaves that was killed while it wrote objects. Its lock lasts for seconds, and other
-- batches wait for it for at most wait seconds.
function M.crash(seconds, wait)
  push.max_wait_s = wait
  ngx.update_time()
  local owner = dict:incr("owner", 1, 0)
  dict:set("lock", owner, seconds)
  dict:set("guard", 2 * owner + 1)
end

-- free reports whether nobody has the lock.
function M.free()
  return dict:get("lock") == nil
end

-- overtaken applies a batch, during which another worker takes the lock and writes a state: before the at-th write of a
-- record, or right after it; for 0, before the batch checks whether it owns the lock. It returns the answer, and who
-- has the lock afterwards.
function M.overtaken(batch, rival, at, after)
  local set_record, writings = shared.set_record, 0
  local function overtake()
    dict:set("lock", "another", 1)
    dict:set(0, ngx.decode_base64(rival))
  end
  local record = shared.record
  shared.record = function(...)
    local rec = record(...)
    if at == 0 then
      shared.record = record
      overtake()
    end
    return rec
  end
  shared.set_record = function(region, index, value)
    writings = writings + 1
    if writings == at and not after then
      overtake()
    end
    local err = set_record(region, index, value)
    if writings == at and after then
      overtake()
    end
    return err
  end
  local status, _, body = push.apply_batch(ngx.decode_base64(batch))
  shared.set_record, shared.record = set_record, record
  return status, ngx.encode_base64(body), dict:get("lock")
end

-- fails applies a batch while a write of a record raises an error of Lua.
function M.fails(batch)
  local set_record = shared.set_record
  shared.set_record = function()
    error("broken")
  end
  local status, _, body = push.apply_batch(ngx.decode_base64(batch))
  shared.set_record = set_record
  return status, body
end

-- body looks a variant up through the worker's cache.
function M.body(epoch, slot, stamp, length)
  local body = shared.body(ngx.decode_base64(epoch), { slot = slot, stamp = ngx.decode_base64(stamp), length = length })
  return body and ngx.encode_base64(body)
end

M.min_record = wire.min_record

return M
