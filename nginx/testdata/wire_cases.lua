-- Runs cases of wire_test.go: each is an array of a function's name and its arguments, bytes as base64, and its result
-- is a line of text, as the test in Go writes it.

local address = require "gatehouse.address"
local siphash = require "gatehouse.siphash"
local guesses = require "gatehouse.guesses"
local hits = require "gatehouse.hits"
local throttle = require "gatehouse.throttle"
local wire = require "gatehouse.wire"

local bytes = ngx.decode_base64

local function hex(s)
  return (s:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

-- decimal prints a number or 64-bit integer.
local function decimal(n)
  if type(n) == "number" then
    return ("%.0f"):format(n)
  end
  return (tostring(n):gsub("U?LL$", ""))
end

local function permissions(n)
  return bit.tohex(n, 16)
end

local function object_text(o, err)
  if not o then
    return "error " .. err
  end
  local parts = {
    decimal(o.version),
    decimal(o.published_ms),
    decimal(o.ttl_ms),
    decimal(o.expires_ms),
    hex(o.key),
    hex(o.etag),
    hex(o.content_type),
  }
  for _, v in ipairs(o.variants) do
    parts[#parts + 1] = ("%d:%d:%d:%s"):format(v.encoding, v.slot, v.length, hex(v.stamp))
  end
  return table.concat(parts, " ")
end

local cases = {}

function cases.state(rec)
  local s, err = wire.parse_state(bytes(rec))
  if not s then
    return "error " .. err
  end
  local parts = {
    hex(s.epoch),
    decimal(s.in_step_ms),
    decimal(s.heartbeat_ms),
    s.object_buckets,
    s.verdict_buckets,
    s.body_slots,
    tostring(s.devices_complete),
    hex(s.placement),
    hex(s.credential),
  }
  for _, name in ipairs(s.permissions) do
    parts[#parts + 1] = hex(name) .. "."
  end
  return table.concat(parts, " ")
end

function cases.hash(key, placement_buckets, verdict_buckets, id, shown)
  key, id, shown = bytes(key), bytes(id), bytes(shown)
  local state = { placement = key, credential = key }
  state.object_buckets, state.verdict_buckets = placement_buckets, verdict_buckets
  local parts = {}
  local function add(f, ...)
    local ok, a, b = pcall(f, state, ...)
    parts[#parts + 1] = ok and (type(a) == "number" and ("%.0f"):format(a) or hex(a)) or "panic"
    if ok and b then
      parts[#parts + 1] = type(b) == "number" and ("%.0f"):format(b) or hex(b)
    end
  end
  add(wire.place, id .. shown)
  add(wire.digest, id, shown)
  add(wire.session_digest, id, shown)
  add(wire.device, id)
  return table.concat(parts, " ")
end

function cases.siphash(key, message)
  key, message = bytes(key), bytes(message)
  local low, high = siphash.hash64(key, message, #message)
  local out = siphash.hash128(key, message, #message)
  return ("%.0f %.0f %s"):format(low, high, hex(require("ffi").string(out, 16)))
end

function cases.object(rec, epoch, tag, key)
  return object_text(wire.find_object(rec and bytes(rec), bytes(epoch), tag, bytes(key)))
end

function cases.body(rec, epoch, stamp, length)
  local body, err = wire.find_body(rec and bytes(rec), bytes(epoch), { stamp = bytes(stamp), length = length })
  return body and "body " .. hex(body) or "error " .. err
end

function cases.verdict(rec, epoch, digest, tag)
  local status, v, err = wire.find_verdict(rec and bytes(rec), bytes(epoch), bytes(digest), bytes(tag))
  if not v then
    return status .. " " .. tostring(err)
  end
  return ("%s %s %s %s %s %s"):format(
    status,
    permissions(v.permissions),
    decimal(v.expires_ms),
    decimal(v.refresh_after_ms),
    decimal(v.not_after_ms),
    v.outcome
  )
end

function cases.batch(b)
  local batch, err = wire.parse_batch(bytes(b))
  if not batch then
    return "error " .. err
  end
  local parts = { hex(batch.epoch), hex(batch.replaces) }
  for _, op in ipairs(batch.ops) do
    parts[#parts + 1] = ("%s:%d:%s"):format(op.region, op.index, hex(op.record))
  end
  return table.concat(parts, " ")
end

function cases.verify_request(id, secret, source, session)
  return hex(wire.append_verify_request(bytes(id), bytes(secret), bytes(source), bytes(session)))
end

function cases.verify_response(b)
  local r, err = wire.parse_verify_response(bytes(b))
  if not r then
    return "error " .. err
  end
  return ("%s %d %d %s %s"):format(r.outcome, r.retry_after_s, r.throttle_ms, permissions(r.permissions), hex(r.epoch))
end

function cases.session_response(b)
  local r, err = wire.parse_session_response(bytes(b))
  if not r then
    return "error " .. err
  end
  return ("%s %d %d %s"):format(r.outcome, r.retry_after_s, r.throttle_ms, hex(r.body))
end

function cases.fetch_response(b, key)
  local r, err = wire.parse_fetch_response(bytes(b))
  if not r then
    return "error " .. err
  end
  local o
  o, err = wire.find_object(r.record, r.epoch, 0, bytes(key))
  local parts = { hex(r.epoch), object_text(o, err) }
  for i = 1, o and #o.variants or 0 do
    local body = r.body(o, i)
    parts[#parts + 1] = body and hex(body) .. "." or "none"
  end
  return table.concat(parts, " ")
end

function cases.hits(keys)
  local report = wire.begin_hits()
  for _, key in ipairs(keys) do
    report = wire.append_hit(report, bytes(key))
  end
  return hex(report)
end

function cases.address(text)
  text = bytes(text)
  local network = address.network(text)
  return address.parse(text) .. " " .. (network and hex(network) or "none")
end

local M = {}

-- run returns the results of a batch of cases.
function M.run(list)
  local results = {}
  for i, case in ipairs(list) do
    for k = 1, 6 do
      if case[k] == ngx.null then
        case[k] = nil
      end
    end
    local ok, result = xpcall(function()
      return cases[case[1]](unpack(case, 2, 6))
    end, debug.traceback)
    results[i] = ok and result or "panic " .. result
  end
  return results
end

-- throttle runs steps on new throttles: add, sweep or retry_after, with their arguments.
function M.throttle(steps)
  local throttles, results = throttle.new(), {}
  for i, step in ipairs(steps) do
    results[i] = throttles[step[1]](throttles, unpack(step, 2)) or 0
  end
  return results, throttles.count
end

-- fill throttles n sources, and returns how many it has.
function M.fill(n)
  local throttles = throttle.new()
  for i = 1, n do
    throttles:add(("10.%d.%d.1"):format(i / 256, i % 256), 0, 1000)
  end
  return throttles.count
end

-- guesses runs steps on new guesses: the name of a method and its arguments. It returns their results as numbers, and
-- how many there are.
function M.guesses(steps)
  local all, results = guesses.new(), {}
  for i, step in ipairs(steps) do
    local result = all[step[1]](all, unpack(step, 2))
    results[i] = tonumber(result) or result and 1 or 0
  end
  return results, all.count
end

-- report_hits has many hits of a long key, and returns the size of the report.
function M.report_hits()
  local size
  local calls = {
    send_hits = function(_, report)
      size = #report
    end,
  }
  for _ = 1, 20000 do
    hits.hit(("k"):rep(2048))
  end
  for _ = 1, 5 do
    hits.tick(calls)
  end
  return size
end

-- fill_guesses makes n guesses, and returns how many it has, how many it counts, the greatest number of pairs with one,
-- how many were first ones, and how many pairs with one are left at the end of their life.
function M.fill_guesses(n)
  local all, count, most, firsts = guesses.new(), 0, 0, 0
  for i = 1, n do
    local device, source = "dev" .. i % 5000, ("10.%d.%d.1"):format(i / 256, i % 256)
    firsts = firsts + (all:doubts(device, source, 0, "wrong") and 0 or 1)
    all:answered(device, source, 0, "throttled", 1000)
    local once = 0
    if i % 1000 == 0 or i == 4096 then
      for _ in pairs(all.once) do
        once = once + 1
      end
      most = math.max(most, once)
    end
  end
  for _, networks in pairs(all.devices) do
    for _ in pairs(networks) do
      count = count + 1
    end
  end
  local counted = all.count
  all:sweep(60000)
  return count, counted, most, firsts, all.once_count
end

return M
