-- The push listener: applies the sidecar's batches, and answers with the state record. wire/batch.go describes a batch
-- and the answers.
--
-- A shared dictionary can't compare and swap, so a batch is applied under a lock, which expires, because its worker may
-- have been killed. A worker applies a batch without yielding, so it waits only for other workers. One that was stopped
-- for longer than the lock lasts finds another in its place, and concludes that another worker replaced it.

local counters = require "gatehouse.counters"
local shared = require "gatehouse.shared"
local wire = require "gatehouse.wire"

local ngx = ngx
local dict = ngx.shared.gatehouse_state

local M = {}

-- lock_s is how long a killed worker blocks others, s; a batch takes about a millisecond.
local lock_s = 1

-- max_wait_s bounds how long a batch waits for the lock, s.
M.max_wait_s = 2.5

-- The steps in which a batch waits, s.
local first_step_s, last_step_s = 0.001, 0.02

-- next_owner returns a number that no batch had before.
local function next_owner()
  local owner, err = dict:incr("owner", 1)
  if err == "not found" then
    dict:safe_add("owner", 0)
    owner, err = dict:incr("owner", 1)
  end
  return owner, err
end

-- acquire waits for the lock and returns its owner's number, or nil and the reason.
local function acquire()
  local owner, err = next_owner()
  if not owner then
    return nil, err
  end
  ngx.update_time() -- the lock's end counts from nginx's own time, which may be old
  local step, till = first_step_s, ngx.now() + M.max_wait_s
  while true do
    local ok
    ok, err = dict:safe_add("lock", owner, lock_s)
    if ok then
      return owner
    end
    if err ~= "exists" then
      return nil, err
    end
    if ngx.now() >= till then
      return nil, "other batches are being applied: send it again"
    end
    ngx.sleep(step)
    step = math.min(step * 2, last_step_s)
    ngx.update_time()
  end
end

-- owns reports whether nobody else has taken the lock. Within a callback nginx's time stands still, so the lock is also
-- owned after its end, as long as nobody else wants it.
local function owns(owner)
  return dict:get("lock") == owner
end

-- raised reports whether the guard is raised.
local function raised()
  local value = dict:get(shared.guard_key)
  return value and value % 2 == 1
end

-- raise is called before the first write of objects of a batch, and lower when a batch was written, or has failed. A
-- worker that was killed in between has left the guard raised, and the next batch lowers it. Owners' numbers increase,
-- so the guard has each value once.
local function raise(owner)
  local ok, err = dict:safe_set(shared.guard_key, 2 * owner + 1)
  return ok and nil or err
end

local function lower(owner)
  if not raised() then
    return
  end
  local _, err = dict:safe_set(shared.guard_key, 2 * owner + 2)
  if err then
    ngx.log(ngx.WARN, "gatehouse: lower guard: ", err, ": objects are read from shared memory for each request")
  end
end

-- write writes a batch's records if memory has the epoch that the batch replaces. It returns whether it did, and why it
-- failed. A batch that is overtaken may have overwritten the other one's records by then, so the state is blanked: so
-- the other sidecar learns of it, too, and pushes everything.
local function write(batch, owner)
  local held = wire.state_epoch(shared.record("state", 0)) == batch.replaces
  local wrote, up = false, false
  for _, op in ipairs(batch.ops) do
    held = held and owns(owner)
    if not held then
      break
    end
    local err
    if op.region ~= "state" then
      wrote = true
      if op.region == "objects" and not up then
        err, up = raise(owner), true
      end
    end
    err = err or shared.set_record(op.region, op.index, op.record)
    if err then
      return false, ("write %s record %d: %s"):format(op.region, op.index, err)
    end
    if op.region == "state" and not owns(owner) then
      held, wrote = false, true -- it may have overwritten the other one's state
    end
  end
  return held, nil, wrote
end

-- apply_batch applies a batch, and returns the status, content type and body of the answer.
function M.apply_batch(body)
  local batch, why, foreign = wire.parse_batch(body)
  if not batch then
    if foreign then
      why = ('from "%s": %s'):format(ngx.var.http_user_agent or "", why)
    end
    return M.refuse(400, why)
  end
  local owner, busy = acquire()
  if not owner then
    return M.refuse(503, "lock shared memory: " .. busy)
  end
  if raised() then
    ngx.log(ngx.WARN, "gatehouse: lower guard: a worker has ended while it wrote objects")
  end
  local ok, applied, err, wrote = pcall(write, batch, owner)
  if not ok then
    applied, err = false, applied -- an error of Lua; the lock and the guard must not stay
  end
  local state = shared.record("state", 0)
  if not applied and not err and wrote then
    shared.set_record("state", 0, ("\0"):rep(wire.min_record))
  end
  if owns(owner) then
    lower(owner)
    dict:delete("lock")
  end
  if err then
    return M.refuse(500, err)
  end
  counters.add(applied and "batches_applied" or "batches_refused")
  return applied and 200 or 409, "application/octet-stream", state or ""
end

-- refuse counts and logs a refusal, and returns the answer.
function M.refuse(status, why)
  counters.add "batches_refused"
  ngx.log(ngx.WARN, "gatehouse: push refused: ", why)
  return status, "text/plain", why .. "\n"
end

-- read_body returns the request's body.
local function read_body()
  ngx.req.read_body()
  local body = ngx.req.get_body_data()
  if body then
    return body
  end
  local path = ngx.req.get_body_file()
  if not path then
    return ""
  end
  local file, err = io.open(path, "rb")
  if not file then
    error("gatehouse: read batch: " .. err)
  end
  body = file:read("*a")
  file:close()
  return body
end

-- answer returns the status, content type and body of the answer to the current request.
local function answer()
  local method, target = ngx.req.get_method(), ngx.var.request_uri
  if method ~= "POST" or target ~= "/v1/apply" then
    ngx.req.discard_body()
    return M.refuse(404, ("%s %s: only POST /v1/apply is served here"):format(method, target))
  end
  local too_large = ("batch of more than %d bytes: send smaller ones"):format(wire.max_batch)
  if (tonumber(ngx.var.http_content_length) or 0) > wire.max_batch then
    ngx.req.discard_body()
    return M.refuse(413, too_large)
  end
  local body = read_body()
  if #body > wire.max_batch then
    return M.refuse(413, too_large)
  end
  return M.apply_batch(body)
end

-- apply answers a request at the push listener. It is for content_by_lua in a location for all paths.
function M.apply()
  local status, content_type, body = answer()
  ngx.status = status
  ngx.header["Content-Type"] = content_type
  ngx.header["Content-Length"] = #body
  ngx.print(body)
end

return M
