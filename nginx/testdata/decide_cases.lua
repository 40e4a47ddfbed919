-- Decides requests for decide_test.go. Bytes of records and messages are base64.

local cjson = require "cjson"
local engine = require "gatehouse.engine"
local reader = require "gatehouse.headers"
local wire = require "gatehouse.wire"

local decode = ngx.decode_base64

local M = {}

-- memory returns shared memory with these records; each has a region, an index and its bytes.
local function memory(records)
  local all = { state = {}, objects = {}, bodies = {}, verdicts = {} }
  for _, r in ipairs(records) do
    all[r.region][r.index] = decode(r.record)
  end
  return {
    record = function(region, index)
      return all[region][index]
    end,
    body = function(epoch, variant)
      return (wire.find_body(all.bodies[variant.slot], epoch, variant))
    end,
    guard = function()
      return 2
    end,
  }
end

local function headers_of(list)
  local headers = {}
  for _, h in ipairs(list) do
    reader.add(headers, h[1], h[2])
  end
  return headers
end

local function answers_of(a)
  local answers =
    { unreachable = a.unreachable, failed_fetch = a.failed_fetch, suspect = a.suspect, throttled_s = a.throttled_s }
  if a.verify then
    answers.verify = wire.parse_verify_response(decode(a.verify))
  end
  if a.fetch then
    answers.fetch = wire.parse_fetch_response(decode(a.fetch))
  end
  if a.session then
    answers.session = wire.parse_session_response(decode(a.session))
  end
  return answers
end

local function hex(bytes)
  return (bytes:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

-- latin1 returns a text in UTF-8 with a character for each byte, because JSON has only characters.
local function latin1(bytes)
  return (
    bytes:gsub("[\128-\255]", function(c)
      return string.char(0xc0 + math.floor(c:byte() / 64), 0x80 + c:byte() % 64)
    end)
  )
end

-- shown returns a decision as decide_test.go compares it.
local function shown(e, r, d)
  local headers = {}
  for i = 1, d.headers and #d.headers or 0, 2 do
    headers[#headers + 1] = d.headers[i]:lower() .. ": " .. d.headers[i + 1]
  end
  return {
    rule = (r.rule or 0) - 1,
    ambiguous = r.ambiguous or false,
    action = d.action,
    status = d.status or 0,
    headers = latin1(table.concat(headers, "\n")),
    body = latin1(d.body or ""),
    key = latin1(d.key or ""),
    digest = (d.action == "verify" or d.action == "exchange" or d.refresh) and hex(d.digest) or "",
    refresh = d.refresh or false,
    new = d.new or false,
    guess = d.guess or "",
    cache_status = d.cache_status or "",
    device = d.action == "pass" and d.device or "",
    names = d.action == "pass" and d.device and e:names(d.permissions) or "",
    vary = d.action == "pass" and d.device and e:vary_upstream(r) or "",
    reload_state = d.reload_state or false,
    auth = d.auth or "",
    reason = d.reason or "",
    cache = d.cache or "",
  }
end

-- decide decides the requests of one case: a state, records, and requests at some times. config is the file with the
-- rules. Each request is decided twice, so that the second decision may be a kept answer.
function M.decide(case, config)
  local e = engine.new(cjson.decode(config))
  if case.state then
    e:set_state(case.read_ms, wire.parse_state(decode(case.state)))
  end
  local mem = memory(case.records or {})
  local out = {}
  for i, q in ipairs(case.requests) do
    local r = { method = q.method, target = q.target, token = q.token }
    r.headers = headers_of(q.headers or {})
    r.rule, r.ambiguous = e.match:govern(r.method, r.target, false)
    local first = shown(e, r, e:decide(q.now_ms, r, mem, answers_of(q.answers or {})))
    local second = shown(e, r, e:decide(q.now_ms, r, mem, answers_of(q.answers or {})))
    for name, value in pairs(first) do
      if second[name] ~= value then
        error(
          ("request %d: the second decision has %s %s, the first %s"):format(
            i,
            name,
            tostring(second[name]),
            tostring(value)
          )
        )
      end
    end
    out[i] = first
  end
  return out
end

return M
