-- Calls a sidecar for calls_test.go.

local calls = require "gatehouse.calls"

local M = {}

-- verify asks for a verdict twice at once, and returns the outcomes, "unreachable" for none, and what is left of the
-- calls: in flight, fetches, requests that wait.
function M.verify(socket, timeout_ms)
  local c = calls.new("unix:" .. socket, timeout_ms)
  local function ask()
    local r = { headers = {}, arrival = calls.arrive() }
    local answers = {}
    c:join(r, { action = "verify", id = "dev", secret = "s", digest = ("d"):rep(16) }, ngx.now() * 1000, answers)
    return answers.verify and answers.verify.outcome or answers.unreachable and "unreachable"
  end
  local other = ngx.thread.spawn(ask)
  local first = ask()
  local _, second = ngx.thread.wait(other)
  return first, second, c.count, c.fetches, c.waiting, next(c.in_flight) == nil
end

-- abandoned asks in a thread that is killed, as with lua_check_client_abort, and returns the requests that still wait
-- when the call has ended.
function M.abandoned(socket, timeout_ms)
  local c = calls.new("unix:" .. socket, timeout_ms)
  local asking = ngx.thread.spawn(function()
    local r = { headers = {}, arrival = calls.arrive() }
    c:join(r, { action = "verify", id = "dev", secret = "s", digest = ("d"):rep(16) }, ngx.now() * 1000, {})
  end)
  ngx.thread.kill(asking)
  for _ = 1, 500 do
    if c.count == 0 then
      break
    end
    ngx.sleep(0.01)
  end
  return c.count, c.waiting
end

-- full asks while these fields have some values, as if other calls were in flight, and returns how the decision
-- continues, and why.
function M.full(action, fields)
  local c = calls.new("unix:/nowhere.sock", 1000)
  for name, value in pairs(fields) do
    c[name] = value
  end
  local answers = {}
  local d = { action = action, id = "dev", secret = "s", digest = ("d"):rep(16), key = "/a" }
  c:join({ headers = {}, arrival = calls.arrive() }, d, ngx.now() * 1000, answers)
  return answers.unreachable and "unreachable" or answers.failed_fetch and "failed fetch", c.failure
end

-- source returns the address in a header, and the CPU time that this took, s.
function M.source(value)
  local begin = os.clock()
  local address = calls.source({ headers = { ["x-forwarded-for"] = value } }, "x-forwarded-for")
  return address, os.clock() - begin
end

-- set_keys reports whether a validator of tokens takes these keys.
function M.set_keys(text)
  return require("gatehouse.jwt").new("gatehouse"):set_keys(text)
end

return M
