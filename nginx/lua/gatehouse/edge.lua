-- The edge: connects nginx's phases, timers and sockets with the policy in the library. nginx.conf shows the phases.
--
--   init_by_lua         edge.init{rules = PATH, socket = "unix:PATH", push = "unix:PATH", memory = PATH,
--                                 memory_mib = N, objects = N, verdicts = N, library = PATH, issuer = TEXT}
--   init_worker_by_lua  edge.start()
--   access_by_lua       edge.access()
--   content_by_lua      edge.ready(), edge.drain(ON)

local base = require "resty.core.base"
local ffi = require "ffi"
local semaphore = require "ngx.semaphore"

local client = require "gatehouse.client"
local library = require "gatehouse.library"
local rules_file = require "gatehouse.rules"
local socket_file = require "gatehouse.socket"

local ngx, pcall = ngx, pcall
local string_of, get_request = ffi.string, base.get_request
local get_method, is_internal = ngx.req.get_method, ngx.req.is_internal
local pass, reply, discard, wait = library.pass, library.reply, library.discard, library.wait

local M = {}

-- tick_s is the interval of the policy's ticks, s.
local tick_s = 0.2

-- The dictionary of what workers share beside the memory: counters, and whether nginx drains.
local dict = ngx.shared.gatehouse

-- options and rules are the master's; workers inherit them. lib is the library in this worker, nil until it is loaded.
local options, rules, lib

-- out has the newest judgement, aux what else the library returns.
local out, aux = library.out(), library.out()

-- draining tells that nginx is about to end: each answer asks its client to close the connection.
local draining = false

-- waiting has a semaphore for each request that waits, by its id.
local waiting = {}

-- bodies has those that are kept as strings, by the library's keys.
local bodies = {}

-- init checks what can be checked before the fork; an error stops nginx from starting or, on a reload, from taking the
-- new configuration.
function M.init(o)
  local err
  if not dict then
    error("gatehouse: lua_shared_dict gatehouse is missing: include http.conf", 0)
  end
  rules, err = rules_file.read(o.rules)
  if not rules then
    error("gatehouse: rules: " .. err, 0)
  end
  if not o.library then -- it is beside lua
    local here = debug.getinfo(1, "S").source:gsub("^@", "")
    o.library = here:gsub("lua/gatehouse/edge%.lua$", "libgatehouse-nginx.so")
  end
  err = library.check(o.library)
  if err then
    error("gatehouse: " .. err, 0)
  end
  socket_file.remove_stale(o.push)
  options = o
end

-- memory_of returns the size of the memory for the sidecar's settings of the same names, and their defaults.
local function memory_of(o)
  return (o.memory_mib or 256) * 1048576, o.objects or 100000, o.verdicts or 100000
end

local pump

-- call makes a call to the sidecar in a timer, so that its answer arrives even if the first request has gone.
local function call(_, token, path, head, body, timeout_ms)
  local method = body and "POST" or "GET"
  local ok, answer = pcall(client.request, options.socket, timeout_ms, method, path, body or "", head)
  if not ok then
    ngx.log(ngx.ERR, "gatehouse: ", answer)
    answer = nil
  end
  lib.gh_answer(token, answer, answer and #answer or 0)
  pump()
end

-- pump does what the library wants done: it continues requests whose answers have come, makes calls, and counts.
pump = function()
  while true do
    local what = lib.gh_next(aux)
    if what == library.wake then
      local arrived = waiting[aux.id]
      if arrived then
        waiting[aux.id] = nil
        arrived:post()
      end
    elseif what == library.call then
      local token, body = aux.id, aux.body ~= nil and string_of(aux.body, aux.body_length) or nil
      local path, head = string_of(aux.name, aux.name_length), string_of(aux.head, aux.head_length)
      if not ngx.timer.at(0, call, token, path, head, body, aux.wait) then
        lib.gh_answer(token, nil, 0)
      end
    elseif what == library.count then
      dict:incr(string_of(aux.name, aux.name_length), aux.number, 0)
    else
      return
    end
  end
end

local function tick()
  draining = dict:get "draining" or false
  lib.gh_tick()
  pump()
end

-- start loads the library, and starts the worker's tick. After a failure each request gets a 503.
function M.start()
  if not options then
    error("gatehouse: no init_by_lua calls edge.init", 0)
  end
  local loaded, err =
    library.load(options.library, rules, options.issuer or "gatehouse", options.memory, memory_of(options))
  if not loaded then
    ngx.log(ngx.CRIT, "gatehouse: ", options.library, ": ", err)
    return
  end
  lib = loaded
  local ok
  ok, err = ngx.timer.every(tick_s, tick)
  if ok then
    ok, err = ngx.timer.at(0, tick)
  end
  if not ok then
    lib = nil
    error("gatehouse: start the tick: " .. err, 0)
  end
end

-- from_operator reports whether a request is no browser's on behalf of another site's page, as the sidecar's package
-- admin decides: its Host is an IP address or localhost (no name that another site chose, DNS rebinding), and
-- Sec-Fetch-Site, or without it Origin, tells no other origin.
local function from_operator()
  local host = ngx.var.http_host or ""
  local name = host:gsub(":%d+$", "")
  if name ~= "localhost" and not name:find "^%d+%.%d+%.%d+%.%d+$" and not name:find "^%[[%x:.]+%]$" then
    return false
  end
  local site, origin = ngx.var.http_sec_fetch_site, ngx.var.http_origin
  if site then
    return site == "same-origin" or site == "none"
  end
  return not origin or origin:gsub("^%a+://", "") == host
end

-- drain starts or ends draining, in all workers within a tick.
function M.drain(on)
  if get_method() ~= "POST" then
    return ngx.exit(ngx.HTTP_NOT_ALLOWED)
  end
  if not from_operator() then
    return ngx.exit(ngx.HTTP_FORBIDDEN)
  end
  draining = on
  dict:set("draining", on)
  ngx.say "OK"
end

-- ready answers a probe.
function M.ready()
  local problem = not lib and "the library isn't loaded" or draining and "draining"
  ngx.status = problem and 503 or 200
  ngx.say(problem or "ready")
end

-- close_connection asks the client to close its connection. nginx itself adds a line with keep-alive; close takes
-- precedence (RFC 9112, section 9.3). HTTP/2 forbids the header.
local function close_connection()
  if ngx.req.http_version() < 2 then
    ngx.header["Connection"] = "close"
  end
end

-- nginx has a copy of a body until the client has read it. unread is how many bytes of bodies the clients of this
-- worker have yet to read; the policy bounds it. A body of at most small bytes isn't counted: it fits into the buffer
-- of the client's socket.
local unread, small = 0, 16 * 1024

-- send_large sends the body of a reply, and returns when the client has read it, has gone, or has taken nothing for
-- send_timeout.
local function send_large(body)
  local size = #body
  unread = unread + size
  local ok = ngx.print(body)
  body = nil -- luacheck: ignore 311 (it isn't needed twice)
  ok = ok and ngx.flush(true)
  unread = unread - size
  return ngx.exit(ok and ngx.HTTP_OK or ngx.ERROR) -- an error ends the connection, and frees the copy at once
end

-- body_of returns the body of the newest judgement.
local function body_of()
  local key = out.key
  if out.forget ~= 0 then
    bodies = {}
  end
  if key == 0 then
    return string_of(out.body, out.body_length)
  end
  local body = bodies[key]
  if not body then
    body = string_of(out.body, out.body_length)
    bodies[key] = body
  end
  return body
end

-- bad answers 400, and not by ngx.exit(400): an error_page would make another request of this one. Then it ends the
-- connection, as nginx does: what is left of a body that can't be read would be the next request.
local function bad()
  ngx.status = 400
  close_connection()
  local body = "bad request\n"
  ngx.header["Content-Length"] = #body
  ngx.print(body)
  if ngx.req.http_version() < 2 then
    ngx.flush(true)
    return ngx.exit(ngx.ERROR)
  end
  return ngx.exit(ngx.HTTP_OK)
end

-- refuse answers 503 in a worker without the library.
local function refuse()
  close_connection() -- nobody has read the body
  ngx.status = 503
  ngx.var.gatehouse_reason = "gatehouse_unavailable_not_started"
  ngx.header["Cache-Control"], ngx.header["Retry-After"] = "no-store", "1"
  ngx.print "try again\n"
  return ngx.exit(ngx.HTTP_OK)
end

-- judge returns what to do with a request, after it has waited for the sidecar, if it must.
local function judge(r)
  local action = lib.gh_access(r, unread, out)
  while action == wait do
    local id, timeout_s, arrived = out.id, out.wait / 1000, semaphore.new(0)
    waiting[id] = arrived
    if out.more ~= 0 then
      pump()
    end
    arrived:wait(timeout_s)
    waiting[id] = nil
    action = lib.gh_resume(r, id, unread, out)
  end
  if out.more ~= 0 then
    pump()
  end
  return action
end

-- access judges a request by the target that the client sent. An internal redirect of a judged request isn't judged
-- again: its secret is gone.
function M.access()
  if is_internal() and ngx.var.gatehouse_judged == "1" then
    return
  end
  if draining then
    close_connection()
  end
  if not lib then
    return refuse()
  end
  local r = get_request()
  local action = judge(r)
  if action == pass then
    return
  end
  if action == discard then -- nginx would take what it doesn't read for the next request
    if not pcall(ngx.req.discard_body) then
      return bad() -- malformed chunks
    end
    lib.gh_reply(r)
  elseif action ~= reply then
    return bad()
  end
  if out.body == nil then
    ngx.send_headers()
  else
    local body = body_of()
    if #body > small then
      return send_large(body)
    end
    ngx.print(body)
  end
  return ngx.exit(ngx.HTTP_OK)
end

-- push applies a batch of the sidecar's, and returns the status, content type and body of the answer.
function M.push(body)
  if not lib then
    return 503, "text/plain", "the library isn't loaded\n"
  end
  lib.gh_push(get_request(), body, #body, aux)
  return aux.status, string_of(aux.name, aux.name_length), string_of(aux.body, aux.body_length)
end

return M
