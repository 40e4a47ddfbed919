-- Runs batches of cases for the tests in Go. A batch is base64 of fields, each behind its length, so that they can have
-- any bytes.

local bit = require "bit"
local ffi = require "ffi"

local encoding = require "gatehouse.encoding"
local etag = require "gatehouse.etag"
local match = require "gatehouse.match"
local objectkey = require "gatehouse.objectkey"

ffi.cdef "typedef struct { long seconds, nanoseconds; } text_cases_time; int clock_gettime(int, text_cases_time *);"

local M = {}

-- fields returns the fields of a batch.
local function fields(batch)
  local text, all, i = ngx.decode_base64(batch), {}, 1
  while i <= #text do
    local a, b, c, d = text:byte(i, i + 3)
    local size = a + b * 256 + c * 65536 + d * 16777216
    all[#all + 1] = text:sub(i + 4, i + 3 + size)
    i = i + 4 + size
  end
  return all
end

-- batch returns fields as a batch.
local function batch(all)
  local out = {}
  for i = 1, #all do
    local size = #all[i]
    out[2 * i - 1] = string.char(bit.band(size, 255), bit.band(bit.rshift(size, 8), 255), bit.rshift(size, 16), 0)
    out[2 * i] = all[i]
  end
  return ngx.encode_base64(table.concat(out))
end

local function truth(b)
  return b and "1" or "0"
end

-- each_text calls a function of gatehouse.objectkey with each field, and returns what it returns.
function M.each_text(name, cases)
  local all = fields(cases)
  for i = 1, #all do
    local result = objectkey[name](all[i])
    all[i] = type(result) == "string" and result or truth(result)
  end
  return batch(all)
end

function M.canonical_query(cases, only)
  local all = fields(cases)
  only = only and fields(only)
  for i = 1, #all do
    all[i] = objectkey.canonical_query(all[i], only)
  end
  return batch(all)
end

-- keys has a target and a device in turn, and returns two results for each: a key behind "+", or "-" for none; and what
-- counts returns.
function M.keys(cases, query, per_device)
  local all = fields(cases)
  local cache = { query = query and fields(query), per_device = per_device }
  local naming = { query = cache.query or {} }
  for i = 1, #all, 2 do
    local target = all[i]
    local key = objectkey.key(target, cache, all[i + 1])
    all[i], all[i + 1] = key and "+" .. key or "-", objectkey.counts(target, naming)
  end
  return batch(all)
end

-- none_match has a list and an entity-tag in turn.
function M.none_match(cases)
  local all, out = fields(cases), {}
  for i = 1, #all, 2 do
    out[#out + 1] = truth(etag.none_match(all[i], all[i + 1]))
  end
  return table.concat(out)
end

-- choose has an Accept-Encoding and variants in turn: of each the encoding and the length, a byte each.
function M.choose(cases)
  local all, out = fields(cases), {}
  for i = 1, #all, 2 do
    local variants = {}
    for at = 1, #all[i + 1], 2 do
      variants[#variants + 1] = { encoding = all[i + 1]:byte(at), length = all[i + 1]:byte(at + 1) }
    end
    out[#out + 1] = encoding.choose(variants, all[i]) or 0
  end
  return out
end

-- ambiguous is added to the rule of a request whose path is ambiguous.
local ambiguous = 10000

-- govern has a method and a target in turn. It returns their rules, 0 for none.
function M.govern(rules, deny, removes, cases)
  local all, out = fields(cases), {}
  local m = match.new(rules, deny)
  for i = 1, #all, 2 do
    local rule, unclear = m:govern(all[i], all[i + 1], removes)
    out[#out + 1] = (rule or 0) + (unclear and ambiguous or 0)
  end
  return out
end

local time = ffi.new("text_cases_time")

local function now()
  ffi.C.clock_gettime(2, time) -- of this process
  return tonumber(time.seconds) * 1e6 + tonumber(time.nanoseconds) / 1e3
end

-- cost returns what each request costs, in microseconds of processor time: the least of some rounds, each of which
-- decides it often enough to be measured.
function M.cost(rules, deny, cases, rounds, compiled)
  local all, out = fields(cases), {}
  local m = match.new(rules, deny)
  if not compiled then
    jit.off()
    jit.flush()
  end
  for i = 1, #all, 2 do
    local least
    for _ = 1, rounds do
      local count, step, began = 0, 1, now()
      local took
      repeat
        for _ = 1, step do
          m:govern(all[i], all[i + 1])
        end
        count = count + step
        took, step = now() - began, 2 * step -- reading the clock costs as much as a plain path
      until took > 200
      least = math.min(least or took / count, took / count)
    end
    out[#out + 1] = least
  end
  jit.on()
  return out
end

return M
