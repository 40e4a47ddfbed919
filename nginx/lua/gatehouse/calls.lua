-- Calls to the sidecar: at most one is in flight per credential or key in a worker, and every request that needs its
-- answer waits for it. A call runs in a timer, so its answer arrives even if the first request has gone.

local semaphore = require "ngx.semaphore"

local address = require "gatehouse.address"
local client = require "gatehouse.client"
local counters = require "gatehouse.counters"
local guesses = require "gatehouse.guesses"
local throttle = require "gatehouse.throttle"
local wire = require "gatehouse.wire"

local ngx, pcall, tostring, find, match = ngx, pcall, tostring, string.find, string.match

local M = {}

-- max_calls and max_fetches bound the calls of one worker in flight; max_fetches bounds those that wait for Redis,
-- because verifications don't need Redis and must continue if it hangs. Requests beyond a bound are answered as if the
-- sidecar had not answered.
local max_calls = 4096
local max_fetches = 256

-- max_waiting bounds the requests of one worker that wait for calls. A request may wait for a fetch only while less
-- than half of it is used.
local max_waiting = 8192

local report_every_ms = 60000

local paths = { verify = "/v1/verify", fetch = "/v1/fetch", exchange = "/v1/session" }

local Calls = {}
Calls.__index = Calls

-- new returns the calls of a worker to the sidecar's socket, "unix:PATH".
function M.new(socket, timeout_ms)
  return setmetatable({
    socket = socket,
    timeout_ms = timeout_ms,
    in_flight = {}, -- by path and what it asks for
    count = 0,
    fetches = 0, -- of those in flight
    waiting = 0, -- requests
    throttles = throttle.new(),
    guesses = guesses.new(),
    failed = 0, -- since the last report
    failure = nil, -- one of them
    reported_ms = 0, -- time of the last report, unix ms
  }, Calls)
end

function Calls:fail(why)
  self.failed = self.failed + 1
  self.failure = why
  counters.add "calls_failed"
end

-- report logs the failures since the last report; the first one at once.
function Calls:report(now)
  local since = now - self.reported_ms
  if self.failed == 0 or 0 <= since and since < report_every_ms then
    return
  end
  ngx.log(
    ngx.WARN,
    "gatehouse: ",
    self.failed,
    " calls to the sidecar at ",
    self.socket,
    " failed since the last report, e.g. ",
    self.failure,
    ": check that the sidecar runs and listens on this socket"
  )
  self.failed, self.reported_ms = 0, now
end

-- read_answer stores the answer to a call.
local function read_answer(call, answer)
  if call.path == paths.fetch then
    call.answer = wire.parse_fetch_response(answer)
    return
  end
  local parse = call.path == paths.exchange and wire.parse_session_response or wire.parse_verify_response
  call.answer = parse(answer)
end

-- answered stores what the answer to a call, nil for an unusable one, tells about later credentials.
local function answered(calls, call)
  if not call.device then
    return
  end
  local now, answer = ngx.now() * 1000, call.answer or {}
  if answer.outcome == "unavailable" then
    calls.throttles:add(call.source, now, answer.throttle_ms)
  end
  calls.guesses:answered(call.device, call.source, now, answer.outcome, answer.throttle_ms, call.right)
end

-- run makes a call in a timer, and wakes the requests that wait for it, whatever happens.
local function run(_, calls, call)
  local ok, answer, err =
    pcall(client.request, calls.socket, calls.timeout_ms, "POST", call.path, call.body, call.headers)
  if not ok then
    answer, err = nil, answer
  elseif answer then
    ok, err = pcall(read_answer, call, answer)
    if not ok then
      answer = nil
    end
  end
  answered(calls, call)
  calls.in_flight[call.key] = nil
  calls.count = calls.count - 1
  if call.path == paths.fetch then
    calls.fetches = calls.fetches - 1
  end
  if not answer then
    calls:fail(call.path .. ": " .. tostring(err or "no answer"))
  end
  -- Here and not as each request continues: with lua_check_client_abort, one whose client has gone doesn't.
  calls.waiting = calls.waiting - call.waiting
  call.done = true
  if call.waiting > 0 then
    call.arrived:post(call.waiting)
  end
end

-- dispatch starts the call that a decision needs for a request from source; nil if that fails.
function Calls:dispatch(action, d, key, source, newest)
  local path = paths[action]
  local fetches = action == "fetch" and 1 or 0
  if self.count >= max_calls or self.fetches + fetches > max_fetches then
    self:fail(
      ("no call to %s: %d are in flight, %d to %s, the maximum is %d and %d"):format(
        path,
        self.count,
        self.fetches,
        paths.fetch,
        max_calls,
        max_fetches
      )
    )
    return nil
  end
  local call = {
    key = key,
    path = path,
    source = source,
    device = action ~= "fetch" and d.secret and d.id or nil, -- whose secret the call has
    right = d.guess == "right", -- shared memory tells that the secret is right
    newest = newest,
    waiting = 0,
    arrived = semaphore.new(0),
    headers = M.origin(),
    body = action == "fetch" and d.key or wire.append_verify_request(d.id, d.secret or "", source, d.session or ""),
  }
  local ok, err = ngx.timer.at(0, run, self, call)
  if not ok then
    self:fail("no call to " .. path .. ": " .. err)
    return nil
  end
  self.in_flight[key] = call
  self.count, self.fetches = self.count + 1, self.fetches + fetches
  return call
end

-- forget forgets what a sidecar told about credentials.
function Calls:forget()
  self.throttles:clear()
  self.guesses = guesses.new()
end

-- missing records that a request gets no answer of the sidecar's.
local function missing(answers, action)
  answers.suspect = nil
  if action == "fetch" then
    answers.failed_fetch = true
  else
    answers.unreachable = true
  end
end

-- throttled_s returns for how many seconds the sidecar refuses such credentials of a source anyway, 0 if it doesn't.
function Calls:throttled_s(action, d, source, now)
  if action == "fetch" or not d.secret then
    return 0
  elseif d.new then
    return self.throttles:retry_after(source, now)
  end
  return self.guesses:throttled_s(d.id, source, now, d.guess == "right")
end

-- doubts reports whether the sidecar must decide about a secret about which shared memory has decided. Then the request
-- must be decided again.
function Calls:doubts(r, d, now, answers)
  if
    answers.suspect
    or d.action ~= "reply" and d.action ~= "pass"
    or d.guess == "right" and not self.guesses.devices[d.id]
  then
    return false
  end
  answers.suspect = self.guesses:doubts(d.id, M.source(r, self.source_header), now, d.guess)
  return answers.suspect
end

-- join makes a request wait for the answer that its decision needs, and stores the answer.
function Calls:join(r, d, now, answers)
  local action = d.action
  local key = paths[action] .. (action == "fetch" and d.key or d.digest)
  local call = self.in_flight[key]
  local most = action == "fetch" and max_waiting / 2 or max_waiting
  if self.waiting >= most then
    self:fail(("too many requests wait for %s: %d, the maximum"):format(paths[action], most))
    return missing(answers, action)
  end
  if not call then
    local source = M.source(r, self.source_header)
    local wait = self:throttled_s(action, d, source, now)
    if wait > 0 then
      answers.throttled_s = wait
      return
    end
    call = self:dispatch(action, d, key, source, M.newest())
    if not call then
      if d.secret and action ~= "fetch" then
        self.guesses:answered(d.id, source, now, nil, 0, d.guess == "right")
      end
      return missing(answers, action)
    end
  end
  if action == "fetch" then
    -- The credential may be revoked before the object arrives. Then shared memory shows that.
    answers.verify = nil
  end
  self.waiting, call.waiting = self.waiting + 1, call.waiting + 1
  call.arrived:wait(self.timeout_ms / 1000 + 5)
  if not call.done then
    self.waiting, call.waiting = self.waiting - 1, call.waiting - 1
  end
  answers.suspect = nil
  local answer = call.answer
  if not answer then
    missing(answers, action)
  elseif action == "verify" then
    answers.verify = answer
  elseif action == "exchange" then
    answers.session = answer
  elseif r.arrival <= call.newest then
    answers.fetch = answer
  end
  -- Otherwise the request arrived after the call was made. Its object may be older than one that this client has got
  -- from another worker, so the request is decided as if it had just arrived.
end

-- refresh verifies a credential in the background of an authenticated request.
function Calls:refresh(r, d)
  local key = paths.verify .. d.digest
  if not self.in_flight[key] and self:dispatch("verify", d, key, M.source(r, self.source_header), 0) then
    counters.add("calls_refresh", r.rule)
  end
end

-- send_hits sends a hit report. Other calls fail when this one does, and report it if it matters.
function Calls:send_hits(report)
  ngx.timer.at(0, function()
    client.request(self.socket, self.timeout_ms, "POST", "/v1/hits", report)
  end)
end

-- keys returns the keys of the sidecar's tokens, nil and the reason if it doesn't answer. Only a timer can call it.
function Calls:keys()
  return client.request(self.socket, self.timeout_ms, "GET", "/v1/session/jwks", "")
end

local arrived = 0

-- arrive numbers the requests of a worker.
function M.arrive()
  arrived = arrived + 1
  return arrived
end

-- newest returns the number of the newest request.
function M.newest()
  return arrived
end

-- traceparent returns the request's, nil unless it is one of version 00 (W3C Trace Context, section 3.2.2).
local function traceparent()
  local value = ngx.var.http_traceparent
  if not value or #value ~= 55 or find(value, "%u") then
    return nil
  end
  local trace, span = match(value, "^00%-(%x+)%-(%x+)%-%x+$")
  return trace and #trace == 32 and #span == 16 and value or nil
end

-- origin returns the headers of a call that identify the request that it is for: its id in nginx's logs, and its trace.
function M.origin()
  local trace = traceparent()
  return "X-Request-Id: " .. ngx.var.request_id .. "\r\n" .. (trace and "Traceparent: " .. trace .. "\r\n" or "")
end

-- source returns the client's address, by which the sidecar limits wrong secrets; "" if it is unknown.
function M.source(r, header)
  if not header then
    return address.parse(ngx.var.remote_addr)
  end
  local value = r.headers[header]
  if type(value) == "table" then
    value = value[#value]
  end
  return value and address.parse(match(value, "^.*,(.*)$") or value) or ""
end

return M
