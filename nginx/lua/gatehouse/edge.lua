-- The edge: translates between nginx's phases and the engine. nginx.conf shows the phases.
--
--   init_by_lua         edge.init{rules = PATH, socket = "unix:PATH", push = "unix:PATH", issuer = TEXT}
--   init_worker_by_lua  edge.start()
--   access_by_lua       edge.access()
--   content_by_lua      edge.ready(), edge.drain(ON)

local cjson = require "cjson.safe"

local address = require "gatehouse.address"
local calls = require "gatehouse.calls"
local counters = require "gatehouse.counters"
local engine = require "gatehouse.engine"
local header_reader = require "gatehouse.headers"
local hits = require "gatehouse.hits"
local jwt = require "gatehouse.jwt"
local shared = require "gatehouse.shared"
local socket_file = require "gatehouse.socket"
local wire = require "gatehouse.wire"

local ngx = ngx
local get_method, is_internal = ngx.req.get_method, ngx.req.is_internal
local byte, find, lower, sub, pcall = string.byte, string.find, string.lower, string.sub, pcall

local M = {}

-- format is the version of the file with the rules.
local format = 2

-- tick_s is the interval at which a worker reads the state, flushes its counters and reports, s.
local tick_s = 0.2

-- These are removed from every request: clients must not send them, see edge/policy/removed.go.
local identity_headers = { "x-gatehouse-device", "x-gatehouse-permissions" }
local override_headers = {
  "x-http-method-override",
  "x-http-method",
  "x-method-override",
  "x-original-url",
  "x-rewrite-url",
  "x-original-uri",
  "x-original-method",
}

-- Of the worker; the master fills what init sets, and workers inherit it.
local decider, sidecar, socket, reader, secret_header, source_header, tokens, log_hits

-- draining tells that nginx is about to end: each answer asks its client to close the connection.
local draining = false

-- Headers that decisions depend on, beside those of the configuration.
local read_headers = {
  "if-none-match",
  "if-modified-since",
  "accept-encoding",
  "if-match",
  "if-unmodified-since",
  "content-type",
  "content-length",
  "transfer-encoding",
}

-- keys_s is how long the keys of tokens are used until they are fetched again, far less than the sidecar's
-- --session.rotate; retry_s is how long after a failure.
local keys_s, retry_s = 60, 1

-- names_of returns the headers to read, each once.
local function names_of(config, c)
  local names, seen = {}, {}
  local function add(name)
    if name and not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  for _, name in ipairs(read_headers) do
    add(name)
  end
  add(c.id_header)
  add(c.secret_header)
  add(config.source_header)
  if c.basic or config.session then
    add("authorization")
  end
  return names
end

-- removed_of returns the headers that no upstream gets.
local function removed_of(config)
  local names = {}
  for _, name in ipairs(identity_headers) do
    names[#names + 1] = name
  end
  if not config.keep_overrides then
    for _, name in ipairs(override_headers) do
      names[#names + 1] = name
    end
  end
  return names
end

-- init reads the rules; an error stops nginx from starting or, on a reload, from taking the new configuration.
function M.init(options)
  local file, err = io.open(options.rules, "rb")
  if not file then
    error("gatehouse: rules: " .. err .. ": write the file with gatehousectl nginx render", 0)
  end
  local text = file:read("*a")
  file:close()
  local config
  config, err = cjson.decode(text)
  if not config then
    error("gatehouse: rules: " .. options.rules .. ": " .. err, 0)
  end
  if config.format ~= format then
    error(
      ("gatehouse: rules: %s has format %s, want %d: write it with gatehousectl of the same release"):format(
        options.rules,
        tostring(config.format),
        format
      ),
      0
    )
  end
  decider = engine.new(config)
  counters.init(config)
  socket = options.socket
  socket_file.remove_stale(options.push)
  local c = config.credentials or {}
  if not c.forward then
    secret_header = c.basic and "authorization" or c.secret_header
  end
  source_header, log_hits = config.source_header, config.log_hits
  reader = header_reader.new(names_of(config, c), removed_of(config), secret_header)
  if config.session then
    tokens = jwt.new(options.issuer or "gatehouse") -- --session.issuer of the sidecar
  end
end

-- read_state reads the state record and reports whether it changed.
local function read_state()
  local state = wire.parse_state(shared.record("state", 0))
  if not state then
    return false -- none yet, or from another release: the earlier one stays
  end
  local before = decider.state
  local changed = not before or state.epoch ~= before.epoch or #state.permissions ~= #before.permissions
  if before and state.epoch ~= before.epoch then
    sidecar:forget() -- what a sidecar told that may have been replaced
  end
  decider:set_state(ngx.now() * 1000, state)
  return changed
end

local function tick(premature)
  counters.flush()
  if premature then
    return
  end
  read_state()
  draining = ngx.shared.gatehouse_state:get "draining" or false
  local now = ngx.now() * 1000
  sidecar:report(now)
  sidecar.throttles:sweep(now)
  sidecar.guesses:sweep(now)
  hits.tick(sidecar)
end

-- fetch_keys fetches the keys of tokens, and again later. Until the first answer, tokens get a 401.
local function fetch_keys(premature)
  if premature then
    return
  end
  local called, text = pcall(sidecar.keys, sidecar)
  local ok = called and text and tokens:set_keys(text)
  ngx.timer.at(ok and keys_s or retry_s, fetch_keys)
end

-- start starts the worker's tick.
function M.start()
  sidecar = calls.new(socket, decider.config.sidecar_timeout_ms)
  sidecar.source_header = source_header
  read_state()
  local ok, err = ngx.timer.every(tick_s, tick)
  if ok and tokens then
    ok, err = ngx.timer.at(0, fetch_keys)
  end
  if not ok then
    error("gatehouse: start the tick: " .. err, 0)
  end
end

-- from_operator reports whether a request is no browser's on behalf of another site's page, as the sidecar's package
-- admin decides: its Host is an IP address or localhost (no name that another site chose, DNS rebinding), and
-- Sec-Fetch-Site, or without it Origin, tells no other origin.
local function from_operator()
  local host = ngx.var.http_host or ""
  if host:gsub(":%d+$", "") ~= "localhost" and address.parse(host) == "" then
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
  ngx.shared.gatehouse_state:set("draining", on)
  ngx.say "OK"
end

-- ready answers a probe.
function M.ready()
  ngx.status = draining and 503 or 200
  ngx.say(draining and "draining" or "ready")
end

-- close_connection asks the client to close its connection. nginx itself adds a line with keep-alive; close takes
-- precedence (RFC 9112, section 9.3). HTTP/2 forbids the header.
local function close_connection()
  if ngx.req.http_version() < 2 then
    ngx.header["Connection"] = "close"
  end
end

-- nginx has a copy of a body until the client has read it. max_unread bounds the bodies, bytes, that the clients of a
-- worker have yet to read; requests for more go upstream. A body of at most small bytes isn't counted: it fits into the
-- buffer of the client's socket.
local max_unread, small = 64 * 1024 * 1024, 16 * 1024

local unread = 0

-- send_large sends the body of a reply, and returns when the client has read it, has gone, or has taken nothing for
-- send_timeout.
local function send_large(d)
  local size = #d.body
  unread = unread + size
  local ok = ngx.print(d.body)
  d.body = nil -- it isn't needed twice
  ok = ok and ngx.flush(true)
  unread = unread - size
  return ngx.exit(ok and ngx.HTTP_OK or ngx.ERROR) -- an error ends the connection, and frees the copy at once
end

-- The preconditions that nginx compares with an answer of status 200 by itself; if_modified_since is off.
local preconditions = { "if-none-match", "if-match", "if-unmodified-since" }

-- name_of returns the name of a rule by its index, "none" for nil.
local function name_of(rule)
  return rule and decider.rules[rule].name or "none"
end

-- hit_reasons has the reasons of answers from the cache, for access logs with log_hits, by their counters.
local hit_reasons = {
  cache_hit = "gatehouse_hit",
  cache_not_modified = "gatehouse_not_modified",
  cache_stale_served = "gatehouse_hit_stale",
}

-- reply answers a request under a rule, nil for none. The request's body is discarded: nginx would take what it doesn't
-- read for the next request.
local function reply(method, headers, d, rule)
  if (headers["content-length"] or headers["transfer-encoding"]) and not pcall(ngx.req.discard_body) then
    return ngx.exit(ngx.HTTP_BAD_REQUEST) -- malformed chunks
  end
  ngx.status = d.status
  if d.status == 200 then -- the engine has compared them, or they don't count: nginx must not make it a 304 or a 412
    for i = 1, #preconditions do
      if headers[preconditions[i]] then
        ngx.req.clear_header(preconditions[i])
      end
    end
  end
  local reason = d.reason or log_hits and hit_reasons[d.cache]
  if reason then
    ngx.var.gatehouse_reason = reason
    ngx.var.gatehouse_device = d.id or ""
    ngx.var.gatehouse_rule = name_of(rule)
  end
  local answer, out = d.headers, ngx.header
  for i = 1, #answer, 2 do
    out[answer[i]] = answer[i + 1]
  end
  local body = d.body
  if body then
    out["Content-Length"] = #body
  end
  if not body or method == "HEAD" then
    ngx.send_headers()
  elseif #body > small then
    return send_large(d)
  else
    ngx.print(body)
  end
  return ngx.exit(ngx.HTTP_OK)
end

-- sticks reports whether one of the headers can't be removed: its name has a character that names can't have, but
-- ignore_invalid_headers off lets through. clear_header escapes it, and so finds no such header.
local function sticks(names)
  for i = 1, names and #names or 0 do
    if find(names[i], "[^%w!#$%%&'*+.^_`|~-]") then
      return true
    end
  end
  return false
end

-- strip removes headers of the request.
local function strip(names)
  for i = 1, names and #names or 0 do
    ngx.req.clear_header(names[i])
  end
end

-- pass sends a request upstream with only the authenticated identity, and without its secret.
local function pass(r, d)
  strip(r.removed)
  local var = ngx.var
  var.gatehouse_rule = name_of(r.rule)
  if d.cache_status then
    var.gatehouse_cache_status = d.cache_status
    if r.headers["if-modified-since"] then -- its date may be the cache's
      ngx.req.clear_header "if-modified-since"
    end
  end
  if d.device then
    if secret_header then
      ngx.req.clear_header(secret_header)
      strip(r.spelled)
    end
    var.gatehouse_device = d.device
    ngx.req.set_header("x-gatehouse-device", d.device)
    ngx.req.set_header("x-gatehouse-permissions", decider:names(d.permissions))
    local vary = decider:vary_upstream(r)
    if vary then
      var.gatehouse_vary = vary
      var.gatehouse_private = vary == "*" and "no-store" or "private"
    end
  end
  var.gatehouse_judged = "1"
end

-- target_of returns the target that the upstream gets for $request_uri, nil if the request has none, or one that isn't
-- a path: nginx lets an error_page answer such a request. nginx sends "http://host?query" upstream as "/?query".
local function target_of(request_uri)
  local first = request_uri and byte(request_uri)
  if first == 0x3f then
    return "/" .. request_uri
  end
  return first == 0x2f and request_uri or nil
end

-- token_of returns the token in a line of Authorization, nil if it has another scheme (RFC 9110, section 11.4).
local function token_of(line)
  if lower(sub(line, 1, 7)) ~= "bearer " then
    return nil
  end
  local from = 8
  while byte(line, from) == 0x20 do
    from = from + 1
  end
  return sub(line, from)
end

-- take_token validates the token of a request, if it has one, and removes it: the upstream doesn't get it. It returns
-- whether the request may go on, since one with a bad token is refused on every path, and the token, if there is one.
local function take_token(headers)
  local line = headers["authorization"]
  if type(line) == "table" then
    for i = 1, #line do
      if token_of(line[i]) then
        return false -- two tokens, or one beside something else
      end
    end
    return true
  end
  local text = line and token_of(line)
  if not text then
    return true
  end
  local id, session = tokens:validate(text, ngx.now() * 1000)
  if not id then
    return false
  end
  headers["authorization"] = nil
  ngx.req.clear_header("authorization")
  return true, { id = id, session = session }
end

-- decide decides a request as far as the answers so far allow, and returns when, too, unix ms.
local function decide(r, answers)
  local now = ngx.now() * 1000
  local d = decider:decide(now, r, shared, answers)
  if d.reload_state and read_state() then
    now = ngx.now() * 1000
    d = decider:decide(now, r, shared, answers)
  end
  local guess = d.guess
  if guess and (guess == "wrong" or sidecar.guesses.count > 0) and sidecar:doubts(r, d, now, answers) then
    return decide(r, answers)
  end
  return d, now
end

-- access judges a request by the target that the client sent, whatever nginx makes of it. An internal redirect of a
-- judged request isn't judged again: its secret is gone.
function M.access()
  if is_internal() and ngx.var.gatehouse_judged == "1" then
    return
  end
  if draining then
    close_connection()
  end
  local method, target = get_method(), target_of(ngx.var.request_uri)
  if not target then
    return ngx.exit(ngx.HTTP_BAD_REQUEST)
  end
  local headers, removed, spelled = reader:read()
  if sticks(removed) or sticks(spelled) then
    return ngx.exit(ngx.HTTP_BAD_REQUEST)
  end
  local token
  if tokens then
    local ok
    ok, token = take_token(headers)
    if not ok then
      local d = {}
      decider:refuse(d, "token")
      counters.add(d.auth)
      return reply(method, headers, d)
    end
  end
  local rule, ambiguous = decider.match:govern(method, target, removed ~= nil)
  if not rule and not ambiguous and not decider.config.deny_by_default then
    strip(removed)
    ngx.var.gatehouse_judged = "1"
    return
  end
  local r = {
    method = method,
    target = target,
    headers = headers,
    removed = removed,
    spelled = spelled,
    token = token,
    rule = rule,
    ambiguous = ambiguous,
    arrival = calls.arrive(),
  }
  local answers = {}
  while true do
    local d, now = decide(r, answers)
    local body = d.body
    if body and #body > small and unread + #body > max_unread then
      engine.withhold(d)
    end
    if d.auth and d.action ~= "fetch" then -- afterwards the credential is judged again
      counters.add(d.auth, rule)
    end
    if d.cache then
      counters.add(d.cache, rule)
    end
    if d.refresh then
      sidecar:refresh(r, d)
    end
    if d.action == "reply" then
      if d.key then
        hits.hit(d.key)
      end
      return reply(method, headers, d, rule)
    elseif d.action == "pass" then
      return pass(r, d)
    end
    sidecar:join(r, d, now, answers)
  end
end

return M
