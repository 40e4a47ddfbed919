-- The decision on one request, as package policy of the Wasm filter makes it: a function of the configuration, the
-- state, the request and what shared memory has. It calls neither the sidecar nor the client. The Go package is the
-- reference, and its comments have the reasons; tests compare the two.

local bit = require "bit"

local credentials = require "gatehouse.credentials"
local encoding = require "gatehouse.encoding"
local etag = require "gatehouse.etag"
local match = require "gatehouse.match"
local objectkey = require "gatehouse.objectkey"
local wire = require "gatehouse.wire"

local floor, max, min, random = math.floor, math.max, math.min, math.random
local concat = table.concat
local http_time = ngx.http_time

local M = {}

-- The Cache-Status (RFC 9211) of upstream responses, and of a hit.
local status_method = "gatehouse; fwd=method"
local status_bypass = "gatehouse; fwd=bypass"
local status_crowded = "gatehouse; fwd=bypass; detail=crowded"
local status_not_acceptable = "gatehouse; fwd=bypass; detail=not-acceptable"
local status_no_state = "gatehouse; fwd=stale; detail=no-state"
local status_not_in_step = "gatehouse; fwd=stale; detail=not-in-step"
local status_expired = "gatehouse; fwd=stale; detail=expired"
local status_miss = "gatehouse; fwd=uri-miss"
local status_fetch_failed = "gatehouse; fwd=uri-miss; detail=fetch-failed"
local status_hit = "gatehouse; hit"

-- Bounds an Accept-Encoding that is parsed, in bytes.
local max_accept_encoding = 512

-- Bounds how far the sidecar's time may be ahead of nginx's, ms; both use the same clock.
local same_clock_ms = 1000

-- The maximum time, ms, for which the clocks of Redis and the sidecar disagree that a second has ended.
local settle_ms = 1000

-- The maximum time, ms, by which the Date of answers is behind, at any edge.
local lag_ms = 1000

-- Bounds a token's session in bytes.
local max_session = 41

local codings = { [0] = "identity", "gzip", "br", "zstd" }

local Engine = {}
Engine.__index = Engine

-- new returns an engine without a state for a configuration as `gatehousectl nginx render` writes it.
function M.new(config)
  local c = config.credentials or {}
  local names = {}
  if not c.basic then
    names = { c.id_header, c.secret_header }
  end
  if c.basic or config.session then
    names[#names + 1] = "authorization"
  end
  local vary = concat(names, ", ")
  return setmetatable({
    config = config,
    rules = config.rules,
    match = match.new(config.rules, config.deny_by_default),
    credentials = credentials.new(c),
    basic = c.basic,
    vary_credential = vary,
    vary_encoded_credential = "accept-encoding, " .. vary,
    state = nil,
    read_ms = 0, -- when the state was read, unix ms
    -- The times of a state that was read before the clock was set back, or that were in the future when it was read.
    distrusted_heartbeat_ms = 0,
    distrusted_in_step_ms = 0,
    needs = {}, -- by rule: the permission bits that it requires
    unknown = {}, -- by rule: whether it requires a name that no device has
    permission_names = {}, -- the names of sets of permissions
    kept = {}, -- answers, by target: see answer
    kept_count = 0,
    kept_size = 0, -- see keep
  }, Engine)
end

-- Bounds of the kept answers of a worker: in all, of one target, and of their bodies and questions, bytes.
local max_kept = 1024
local max_kept_of_target = 4
local max_kept_size = 16 * 1024 * 1024

-- set_state sets a state that was read at now, unix ms.
function Engine:set_state(now, state)
  local set_back = now < self.read_ms
  self.state, self.read_ms = state, now
  if set_back or state.heartbeat_ms > now + same_clock_ms then
    self.distrusted_heartbeat_ms = state.heartbeat_ms
  end
  if set_back or state.in_step_ms > now + same_clock_ms then
    self.distrusted_in_step_ms = state.in_step_ms
  end
  self.permission_names = {}
  self:forget()
  local bits = {}
  for i, name in ipairs(state.permissions) do
    bits[name] = bits[name] or bit.lshift(1ULL, i - 1)
  end
  for i, rule in ipairs(self.rules) do
    local needs, unknown = 0ULL, false
    for _, name in ipairs(rule.auth and rule.auth.permissions or {}) do
      if bits[name] then
        needs = bit.bor(needs, bits[name])
      else
        unknown = true
      end
    end
    self.needs[i], self.unknown[i] = needs, unknown
  end
end

-- forget drops all kept answers.
function Engine:forget()
  if self.kept_count > 0 then
    self.kept, self.kept_count, self.kept_size = {}, 0, 0
  end
end

-- problem makes the decision a refusal; reason is that of edge/policy/reason.go, for access logs.
local function problem(d, status, counter, body, reason)
  d.action, d.status, d.auth, d.body, d.reason = "reply", status, counter, body, reason
  d.headers = { "Content-Type", "text/plain", "Cache-Control", "no-store" }
end

-- forbid makes the decision a 403, which doesn't tell the reason.
local function forbid(d, why)
  problem(d, 403, "auth_forbidden", "forbidden\n", "gatehouse_forbidden_" .. why)
end

-- unavailable makes the decision a 503, for a credential that can't be judged now.
local function unavailable(d, retry_after_s, why)
  problem(d, 503, "auth_unavailable", "try again\n", "gatehouse_unavailable_" .. why)
  d.headers[5], d.headers[6] = "Retry-After", tostring(max(retry_after_s, 1))
end

-- guess returns what shared memory tells about the secret of a credential, nil if nothing.
local function guess(session, status, verdict)
  if session then
    return nil
  elseif status == "closed" then
    return "wrong"
  end
  return status == "found" and verdict.outcome == "allow" and "right" or nil
end

-- refuted returns why shared memory shows that a credential with this status is wrong.
local function refuted(status)
  return status == "closed" and "wrong_secret" or "unknown_device"
end

-- decide returns the decision on a request at now, unix ms. The request has
--   method, target   strings
--   headers          by name in lower case: a value, or an array of the values of several lines
--   rule, ambiguous  as gatehouse.match.govern returned them
--   token            the device id and the session of a valid token, if it has one
-- memory has record(region, index), body(epoch, variant) and guard(), which returns another value whenever an object
-- may have changed, nil if that is unknown now. answers has the sidecar's answers so far: verify, fetch,
-- failed_fetch, session and unreachable; and
--   suspect          wrong secrets of the device came from the request's network lately
--   throttled_s      for how many seconds such credentials are refused without a call, nil if they aren't
-- The decision has
--   action           pass, reply, verify, fetch or exchange
--   status, headers, body           of a reply; headers is an array of names and values in turn
--   reason           of a reply that isn't from the cache
--   id, secret, session, digest, refresh, new  of the credential that must be verified, now or in the background
--   guess            right or wrong: what shared memory tells about the secret
--   key              the cache key, of a fetch or a reply from the cache
--   cache_status     for the response of a request that passes
--   device, permissions             the authenticated device of a request that passes
--   reload_state     read the state again and, if it changed, decide again
--   auth, cache      the counters of the request
--   till             until when a reply from the cache has the same bytes, unix ms
function Engine:decide(now, r, memory, answers)
  local d = { action = "pass" }
  if not r.rule then
    if r.ambiguous or self.config.deny_by_default then
      forbid(d, r.ambiguous and "ambiguous_path" or "default")
    end
    return d
  end
  local rule = self.rules[r.rule]
  if rule.session then
    self:issue(d, now, r, memory, answers)
    return d
  end
  if rule.auth then
    self:authorize(d, now, r, memory, answers)
    if d.action ~= "pass" then
      return d
    end
  end
  if rule.cache then
    self:answer(d, now, rule, r, memory, answers)
  end
  return d
end

-- authorize passes a device that a rule permits, with its identity in the decision.
function Engine:authorize(d, now, r, memory, answers)
  local id, secret, session = self:shown(r)
  if not id then
    return self:refuse(d, "no_credential")
  end
  d.id, d.secret, d.session = id, secret, session
  local state = self.state
  if not state then
    d.reload_state = true
    return unavailable(d, 1, "no_state")
  end
  local v = answers.verify
  if v then
    if v.outcome == "unavailable" or v.outcome == "throttled" then
      unavailable(d, v.retry_after_s, "not_verified")
    elseif v.epoch ~= state.epoch then -- its bits have other names in this state
      d.reload_state = true
      unavailable(d, 1, "no_state")
    else
      self:judge(d, now, r.rule, v.outcome, v.permissions)
    end
    return
  end
  d.digest = session and wire.session_digest(state, id, session) or wire.digest(state, id, secret)
  local status, verdict, err = self:find_verdict(id, d.digest, memory)
  d.guess = guess(session, status, verdict)
  if d.guess and answers.suspect then
    self:ask(d, now, answers, "verify")
  elseif self:refutes(now, status, session) then
    self:deny(d, now, refuted(status))
  elseif status == "found" and now < verdict.expires_ms then
    self:judge(d, now, r.rule, verdict.outcome, verdict.permissions)
    d.refresh = verdict.refresh_after_ms ~= 0 and now >= verdict.refresh_after_ms
  elseif not self:may_allow(now) then -- whatever the sidecar answers
    unavailable(d, 1, "not_in_step")
  elseif not answers.unreachable then
    self:ask(d, now, answers, "verify")
    d.reload_state = err == "epoch" or err == "layout"
    d.new = status == "new" and self:heard(now)
  elseif
    status == "found"
    and verdict.outcome == "allow"
    and now < verdict.expires_ms + self.config.verdict_grace_ms
    and (verdict.not_after_ms == 0 or now < verdict.not_after_ms)
  then
    self:judge(d, now, r.rule, verdict.outcome, verdict.permissions)
    if d.auth == "auth_allow" then
      d.auth = "auth_grace"
    end
  else
    unavailable(d, 1, "no_answer")
  end
end

-- ask has the sidecar decide about the credential by a call, verify or exchange.
function Engine:ask(d, now, answers, call)
  if not self:may_allow(now) then -- whatever the sidecar answers
    unavailable(d, 1, "not_in_step")
  elseif answers.throttled_s then
    unavailable(d, answers.throttled_s, "throttled")
    d.auth = "auth_throttled"
  elseif answers.unreachable then
    unavailable(d, 1, "no_answer")
  else
    d.action, d.auth = call, "calls_verify"
  end
end

-- shown returns the id and the secret of a request's credential or, without any part of one, the id and the session of
-- its token; nil if neither can be valid.
function Engine:shown(r)
  local token = r.token
  if not token or self.credentials:any(r.headers) then
    return self.credentials:shown(r.headers)
  end
  if not objectkey.valid_device_id(token.id) or token.session == "" or #token.session > max_session then
    return nil
  end
  return token.id, nil, token.session
end

-- find_verdict looks up a credential in the bucket of its device.
function Engine:find_verdict(id, digest, memory)
  local bucket, tag = wire.device(self.state, id)
  return wire.find_verdict(memory.record("verdicts", bucket), self.state.epoch, digest, tag)
end

-- refutes reports whether shared memory shows that a credential with this status is wrong; for a token another right
-- secret doesn't matter. It returns true only while there are heartbeats of the sidecar: otherwise the edge would
-- refuse new devices and secrets for ever.
function Engine:refutes(now, status, session)
  return (status == "closed" and not session or status == "unregistered" and self.state.devices_complete)
    and self:heard(now)
end

-- issue answers with a token for the request's credential. It ignores tokens, which can't be exchanged for tokens.
function Engine:issue(d, now, r, memory, answers)
  local id, secret = self.credentials:shown(r.headers)
  if not id then
    return self:refuse(d, "no_credential")
  end
  d.id, d.secret = id, secret
  local state = self.state
  if not state then
    d.reload_state = true
    return unavailable(d, 1, "no_state")
  end
  local issued = answers.session
  if answers.unreachable then
    unavailable(d, 1, "no_answer")
  elseif not self:may_allow(now) then
    unavailable(d, 1, "not_in_step")
  elseif not issued then
    d.digest = wire.digest(state, id, secret)
    local status, verdict = self:find_verdict(id, d.digest, memory)
    d.guess = guess(nil, status, verdict)
    if self:refutes(now, status) and not (d.guess == "wrong" and answers.suspect) then
      return self:deny(d, now, refuted(status))
    elseif status == "found" and verdict.outcome == "deny" and now < verdict.expires_ms then
      return self:deny(d, now, "credential")
    end
    self:ask(d, now, answers, "exchange")
    d.new = status == "new" and self:heard(now)
  elseif issued.outcome == "deny" then
    self:deny(d, now, "credential")
  elseif issued.outcome ~= "allow" then
    unavailable(d, issued.retry_after_s, "not_verified")
  else
    d.action, d.status, d.body, d.auth = "reply", 200, issued.body, "sessions_issued"
    d.reason = "gatehouse_token_issued"
    d.headers = { "Content-Type", "application/json", "Cache-Control", "no-store" }
  end
end

-- heard reports whether the last heartbeat of the sidecar was within max_staleness.
function Engine:heard(now)
  local t = self.state.heartbeat_ms
  return t ~= self.distrusted_heartbeat_ms and self:within(now, t, self.config.max_staleness_ms)
end

-- in_step reports whether the edge was in step with Redis at most limit ms ago.
function Engine:in_step(now, limit)
  local t = self.state.in_step_ms
  return t ~= self.distrusted_in_step_ms and self:within(now, t, limit)
end

-- may_allow reports whether any device may be authenticated: see max_auth_staleness.
function Engine:may_allow(now)
  local limit = self.config.max_auth_staleness_ms
  return limit == 0 or self:in_step(now, limit)
end

-- within reports whether t, a time of the state, is at most limit ms ago. A time in the future is from before the clock
-- was set back, and so are both times if the state was read later than now.
function Engine:within(now, t, limit)
  local age = now - t
  return now >= self.read_ms and -same_clock_ms <= age and age <= limit
end

-- judge decides by the verdict on the decision's credential, under a rule.
function Engine:judge(d, now, rule, outcome, permissions)
  if outcome ~= "allow" then
    return self:deny(d, now, "credential")
  end
  if not self:may_allow(now) then
    return unavailable(d, 1, "not_in_step")
  end
  local names = #self.state.permissions
  if names < 64 and bit.rshift(permissions, names) ~= 0ULL then -- names on their way: upstream would miss one
    d.reload_state = true
    return unavailable(d, 1, "no_state")
  end
  local needs = self.needs[rule]
  if self.unknown[rule] or bit.band(permissions, needs) ~= needs then
    return forbid(d, "permission")
  end
  d.device, d.permissions, d.auth = d.id, permissions, "auth_allow"
end

-- names returns the names of a set of permissions, in the state's order, separated by commas.
function Engine:names(permissions)
  local key = tostring(permissions)
  local names = self.permission_names[key]
  if not names then
    local list = {}
    for i, name in ipairs(self.state.permissions) do
      if bit.band(permissions, bit.lshift(1ULL, i - 1)) ~= 0ULL then
        list[#list + 1] = name
      end
    end
    names = concat(list, ",")
    self.permission_names[key] = names -- dropped with the state, five times a second
  end
  return names
end

-- deny refuses the request's credential. While the sidecar isn't in step with Redis, the credential may have become
-- right in Redis, so the device is told to try again instead.
function Engine:deny(d, now, why)
  if not self:in_step(now, self.config.max_staleness_ms) then
    return unavailable(d, 1, "not_in_step")
  end
  self:refuse(d, why)
end

-- refuse makes the decision a 401, which doesn't tell the reason but that a token is bad, as Envoy's jwt_authn does.
function Engine:refuse(d, why)
  problem(d, 401, "auth_deny", "unauthorized\n", "gatehouse_denied_" .. why)
  d.headers[5] = "WWW-Authenticate"
  if why == "token" then
    d.headers[6] = 'Bearer realm="gatehouse", error="invalid_token"'
  else
    d.headers[6] = self.basic and 'Basic realm="gatehouse", charset="UTF-8"' or 'Device realm="gatehouse"'
  end
end

-- first returns the first line of a header, and how many there are.
local function first(headers, name)
  local value = headers[name]
  if type(value) == "table" then
    return value[1], #value
  end
  return value, value and 1 or 0
end

-- list returns all lines of a header as one list (RFC 9110, section 5.3), "" if there is none.
local function list(headers, name)
  local value = headers[name]
  if type(value) ~= "table" then
    return value or ""
  end
  local lines = {}
  for _, line in ipairs(value) do
    if line ~= "" then
      lines[#lines + 1] = line
    end
  end
  return concat(lines, ", ")
end

-- pass sends a request upstream under a cache rule.
local function pass(d, counter, why)
  d.cache, d.cache_status = counter, why
end

-- withhold changes a decision, if it is an answer from the cache with a body, to pass upstream.
function M.withhold(d)
  if d.cache == "cache_hit" or d.cache == "cache_stale_served" then
    d.action, d.key = "pass", nil
    pass(d, "cache_bypass", status_crowded)
  end
end

-- answer answers a request from the cache if possible; otherwise the request passes.
function Engine:answer(d, now, rule, r, memory, answers)
  if r.method ~= "GET" and r.method ~= "HEAD" then
    return pass(d, "cache_bypass", status_method)
  end
  local headers = r.headers
  local accept_encoding = list(headers, "accept-encoding")
  local content_type = first(headers, "content-type")
  if
    headers["if-match"]
    or headers["if-unmodified-since"]
    or content_type and content_type:sub(1, 16) == "application/grpc"
    or #accept_encoding > max_accept_encoding
  then
    return pass(d, "cache_bypass", status_bypass)
  end
  local none_match = list(headers, "if-none-match")
  local device = rule.cache.per_device and d.device or nil
  local asked = not answers.fetch and not answers.failed_fetch and not headers["if-modified-since"]
  local guard, part
  if asked then
    part = rule.cache.query and objectkey.counts(r.target, rule.cache) or r.target
    local kept = self:kept_answer(now, rule, part, device, none_match, accept_encoding, memory)
    if kept then
      d.action, d.status, d.headers, d.body, d.cache, d.key =
        "reply", kept.status, kept.headers, kept.body, kept.cache, kept.key
      return
    end
    guard = memory.guard() -- before the object is read, so that a change in between is noticed later
  end
  local key = objectkey.key(r.target, rule.cache, device)
  if not key then
    return pass(d, "cache_bypass", status_bypass)
  end
  local state = self.state
  if not state then
    d.reload_state = true
    return pass(d, "cache_stale", status_no_state)
  end
  local stale = not self:in_step(now, self.config.max_staleness_ms)
  if stale and not self.config.serve_stale then
    return pass(d, "cache_stale", status_not_in_step)
  end
  local object, err = self:find(key, memory, answers)
  if object and object.ttl_ms ~= 0 and now >= object.expires_ms then
    object, err = nil, "expired"
  end
  if object then
    err = self:serve(d, now, rule, r, none_match, accept_encoding, object, stale, memory, answers)
  end
  if not err then
    if stale then
      d.cache = "cache_stale_served"
      return
    end
    d.key = key
    if guard then
      self:keep(d, now, rule, part, device, none_match, accept_encoding, guard)
    end
    return
  end
  local other_epoch = err == "epoch" or err == "layout"
  if err == "not acceptable" then
    pass(d, "cache_bypass", status_not_acceptable)
  elseif rule.cache.fetch and not objectkey.valid_key(key) then -- it can't have been published
    pass(d, "cache_bypass", status_bypass)
  elseif rule.cache.fetch and not answers.fetch and not answers.failed_fetch then
    d.action, d.key, d.cache, d.reload_state = "fetch", key, "calls_fetch", d.reload_state or other_epoch
  elseif err == "expired" then
    pass(d, "cache_stale", status_expired)
  elseif answers.failed_fetch then
    pass(d, "cache_miss", status_fetch_failed)
  else
    d.reload_state = d.reload_state or other_epoch
    pass(d, "cache_miss", status_miss)
  end
end

-- kept_answer returns a kept answer that is valid now, nil if there is none.
function Engine:kept_answer(now, rule, target, device, none_match, accept_encoding, memory)
  local kept = self.kept[target]
  for i = 1, kept and #kept or 0 do
    local k = kept[i]
    if
      k.rule == rule
      and k.none_match == none_match
      and k.accept_encoding == accept_encoding
      and k.device == device
    then
      if k.from <= now and now < k.till and k.guard == memory.guard() then
        return k
      end
      return nil
    end
  end
end

-- keep keeps the decision's answer. Composing it again costs far more.
function Engine:keep(d, now, rule, target, device, none_match, accept_encoding, guard)
  local size = (d.body and #d.body or 0) + #target + #none_match + #accept_encoding
  if size > max_kept_size / 4 then
    return
  end
  local kept = self.kept[target] or {}
  local at = #kept + 1
  for i = 1, #kept do
    local k = kept[i]
    if
      k.rule == rule
      and k.none_match == none_match
      and k.accept_encoding == accept_encoding
      and k.device == device
    then
      at = i
    end
  end
  if at > max_kept_of_target then
    at = random(max_kept_of_target)
  end
  if kept[at] then
    self.kept_count, self.kept_size = self.kept_count - 1, self.kept_size - kept[at].size
  end
  if self.kept_count >= max_kept or self.kept_size + size > max_kept_size then
    self:forget()
    kept, at = {}, 1
  end
  kept[at] = {
    rule = rule,
    device = device,
    none_match = none_match,
    accept_encoding = accept_encoding,
    from = now,
    till = d.till,
    guard = guard,
    status = d.status,
    headers = d.headers,
    body = d.body,
    cache = d.cache,
    key = d.key,
    size = size,
  }
  self.kept[target] = kept
  self.kept_count, self.kept_size = self.kept_count + 1, self.kept_size + size
end

-- find finds an object in the sidecar's answer to a fetch, or otherwise in shared memory.
function Engine:find(key, memory, answers)
  if answers.failed_fetch then
    return nil, "not found"
  end
  local fetched = answers.fetch
  if fetched then
    return wire.find_object(fetched.record, fetched.epoch, 0, key)
  end
  local bucket, tag = wire.place(self.state, key)
  return wire.find_object(memory.record("objects", bucket), self.state.epoch, tag, key)
end

-- serve makes the decision a 304 or a 200 of an object, or returns why it can't.
function Engine:serve(d, now, rule, r, none_match, accept_encoding, object, stale, memory, answers)
  local i = encoding.choose(object.variants, accept_encoding)
  if not i then
    return "not acceptable"
  end
  local variant = object.variants[i]
  local state = self.state
  local tag = object.etag
  if variant.encoding ~= 0 then
    -- One opaque tag for all encodings: strong only for the bytes that it was made of.
    tag = "W/" .. tag
  end
  local age = floor(max(now - state.in_step_ms, 0) / 1000)
  local headers = {
    "Cache-Status",
    self:hit_status(now, object, stale),
    "ETag",
    tag,
    "Cache-Control",
    self:cache_control(now, rule, object),
    "Age",
    tostring(age),
  }
  local vary = self:vary(rule, object)
  if vary then
    headers[#headers + 1] = "Vary"
    headers[#headers + 1] = vary
  end
  d.till = self:unchanged_until(now, age, object)
  local unix = floor((object.published_ms + settle_ms) / 1000) + 1
  local last_modified = state.in_step_ms >= unix * 1000 + lag_ms and http_time(unix) or nil
  local since = not r.headers["if-none-match"] and r.headers["if-modified-since"]
  if etag.none_match(none_match, object.etag) or since and since == last_modified then
    d.action, d.status, d.headers, d.cache = "reply", 304, headers, "cache_not_modified"
    return
  end
  local body
  if answers.fetch then
    body = answers.fetch.body(object, i)
  else
    body = memory.body(state.epoch, variant)
  end
  if not body then
    return "not found"
  end
  headers[#headers + 1] = "Content-Type"
  headers[#headers + 1] = object.content_type
  if last_modified then
    headers[#headers + 1] = "Last-Modified"
    headers[#headers + 1] = last_modified
  end
  if variant.encoding ~= 0 then
    headers[#headers + 1] = "Content-Encoding"
    headers[#headers + 1] = codings[variant.encoding]
  end
  d.action, d.status, d.headers, d.body, d.cache = "reply", 200, headers, body, "cache_hit"
end

-- unchanged_until returns when the answer with an unchanged object would change, unix ms: when the age of the state or
-- the remaining lifetime has another number of seconds, the object expires, or the state becomes stale.
function Engine:unchanged_until(now, age, object)
  local in_step = self.state.in_step_ms
  local till = min(in_step + (age + 1) * 1000, in_step + self.config.max_staleness_ms + 1)
  if object.ttl_ms ~= 0 then
    local expires = object.expires_ms
    till = min(till, expires, expires - floor((expires - now) / 1000) * 1000 + 1)
  end
  return till
end

-- hit_status returns the Cache-Status of a hit.
function Engine:hit_status(now, object, stale)
  local status = status_hit
  if object.ttl_ms ~= 0 then
    status = ("%s; ttl=%d"):format(status, floor((object.expires_ms - now) / 1000))
  end
  if stale then
    status = status .. "; detail=not-in-step"
  end
  return status
end

-- cache_control returns the Cache-Control of an answer: clients may store it for the rest of its ttl, and without a ttl
-- must revalidate each time. Answers that need a credential are private.
function Engine:cache_control(now, rule, object)
  if object.ttl_ms == 0 then
    return rule.auth and "private, no-cache" or "no-cache"
  end
  -- Over the ttl if the clock was set back.
  local left = floor(min(object.expires_ms - now, object.ttl_ms) / 1000)
  return ("%smax-age=%d"):format(rule.auth and "private, " or "", left)
end

-- vary returns the headers on which an answer depends, nil for none.
function Engine:vary(rule, object)
  if rule.auth then
    return #object.variants > 1 and self.vary_encoded_credential or self.vary_credential
  end
  return #object.variants > 1 and "accept-encoding" or nil
end

-- vary_upstream returns the Vary that keeps the upstream's answer to an authenticated request from other clients, nil
-- for methods whose answers caches don't store.
function Engine:vary_upstream(r)
  if r.method ~= "GET" and r.method ~= "HEAD" then
    return nil
  end
  local cache = self.rules[r.rule].cache
  return cache and cache.per_device and "*" or self.vary_credential
end

return M
