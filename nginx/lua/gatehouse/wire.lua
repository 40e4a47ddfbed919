-- The binary formats between the sidecar and the edge, as the Go package wire defines them: its comments have the
-- layouts, and tests compare the two. Nothing here reads beyond a string, whatever the string has.
--
-- In what these functions return, an epoch, a stamp, a digest and the tag of a device are strings, which compare and
-- hash at no cost. Permissions are uint64_t. Times and durations are numbers, in ms: the doubles next to Go's 64-bit
-- integers, so a comparison with a time of today has Go's result for any of them. A sum of such doubles doesn't wrap
-- at 2^63 as Go's does, so an object has the sum that matters, expires_ms, added as Go does.
--
-- Why something is unusable is one of "not found", "epoch" (another epoch), "layout" (another layout version) and
-- "malformed".

local bit = require "bit"
local ffi = require "ffi"

local siphash = require "gatehouse.siphash"

local band, bxor, rshift = bit.band, bit.bxor, bit.rshift
local cast, copy, tobytes = ffi.cast, ffi.copy, ffi.string
local char, floor, sub, tonumber = string.char, math.floor, string.sub, tonumber

if not ffi.abi("le") then
  error("gatehouse: needs a little-endian processor")
end

ffi.cdef "int memcmp(const void *a, const void *b, size_t n);"

local C = ffi.C
local u8p, u16p, u32p = ffi.typeof("const uint8_t *"), ffi.typeof("const uint16_t *"), ffi.typeof("const uint32_t *")
local u64p, i64p = ffi.typeof("const uint64_t *"), ffi.typeof("const int64_t *")

local M = {}

-- layout is the version of everything here.
local layout = 2
M.layout = layout

-- min_record is the minimum length of a record in bytes.
local min_record = 32
M.min_record = min_record

-- max_batch bounds a batch, in bytes. The sidecar's batches are far smaller; the largest has one body.
M.max_batch = 2 * 1024 * 1024

-- These are the limits in wire/limits that readers check.
local max_device_id, max_secret, max_session = 128, 72, 41
local max_body, max_permissions = 1024 * 1024, 64

local state_region, objects_region, bodies_region, verdicts_region = 0, 1, 2, 3
local regions = { [0] = "state", "objects", "bodies", "verdicts" }

local outcomes = { "allow", "deny", "unavailable", "throttled" }

-- texts has Go's texts of errors, for messages.
local texts = {
  ["not found"] = "not found",
  epoch = "another epoch",
  layout = "another layout version",
  malformed = "malformed",
}

-- u16, u32, u64 and i64 read a number at p, the last two as the double next to it.
local function u16(p)
  return cast(u16p, p)[0]
end

local function u32(p)
  return cast(u32p, p)[0]
end

local function i64(p)
  return tonumber(cast(i64p, p)[0])
end

-- unusable returns why rec, at p, isn't a record of region in this layout; nil if it is one.
local function unusable(rec, p, region)
  if #rec < min_record then
    return "malformed"
  end
  if p[0] ~= layout then
    return "layout"
  end
  if p[1] ~= region then
    return "malformed"
  end
end

-- foreign is unusable with the comparison of epochs that every lookup begins with.
local function foreign(rec, p, region, epoch)
  local err = unusable(rec, p, region)
  if not err and cast(u64p, p)[1] ~= cast(u64p, epoch)[0] then
    return "epoch"
  end
  return err
end

-- no_epoch is the epoch of no state, and no_stamp of no body.
local no_epoch = ("\0"):rep(8)
local no_stamp = no_epoch

-- state_epoch returns the epoch of a state record, no_epoch if it is none.
function M.state_epoch(rec)
  if not rec or unusable(rec, cast(u8p, rec), state_region) then
    return no_epoch
  end
  return sub(rec, 9, 16)
end

-- parse_state reads a state record, or returns nil and why it is unusable.
function M.parse_state(rec)
  if not rec then
    return nil, "malformed"
  end
  local p = cast(u8p, rec)
  local err = unusable(rec, p, state_region)
  if err then
    return nil, err
  end
  local size, epoch = #rec, sub(rec, 9, 16)
  if size < 80 or epoch == no_epoch then
    return nil, "malformed"
  end
  local count = u16(p + 2)
  if count > max_permissions or p[72] > 1 then
    return nil, "malformed"
  end
  local permissions, at = {}, 80
  for i = 1, count do
    if at >= size or at + 1 + p[at] > size then
      return nil, "malformed"
    end
    local length = p[at]
    permissions[i] = sub(rec, at + 2, at + 1 + length)
    at = at + 1 + length
  end
  return {
    object_buckets = u32(p + 4),
    in_step_ms = i64(p + 16), -- when the edge was last known to be in step with Redis, unix ms
    verdict_buckets = u32(p + 24),
    body_slots = u32(p + 28),
    heartbeat_ms = i64(p + 64), -- when the sidecar sent this state, unix ms
    devices_complete = p[72] == 1,
    epoch = epoch,
    permissions = permissions, -- names; the first one's bit is 0
    placement = sub(rec, 33, 48),
    credential = sub(rec, 49, 64),
  }
end

-- reduce maps a uniform h to [0, n), both 32 bits: h * n / 2^32, in two parts, because the product may exceed 2^53.
local function reduce(h, n)
  local high = floor(h / 65536)
  local low = h - high * 65536
  return floor((high * n + floor(low * n / 65536)) / 65536)
end

-- place returns the bucket of the object with this cache key, and the tag of its entry.
function M.place(state, key)
  local low, high = siphash.hash64(state.placement, key, #key)
  return reduce(low, state.object_buckets), high
end

-- The messages that are hashed under the credential key: a u32, an id, and what was shown.
local message = ffi.new("uint8_t[?]", 4 + max_device_id + max_secret)
local mark = cast("uint32_t *", message)

local function hash_credential(state, number, id, shown)
  if #id > max_device_id then
    error("wire: device id over its limits")
  end
  mark[0] = number
  copy(message + 4, id, #id)
  copy(message + 4 + #id, shown, #shown)
  return siphash.hash128(state.credential, message, 4 + #id + #shown)
end

-- digest returns the digest of a device id and its secret.
function M.digest(state, id, secret)
  if #secret > max_secret then
    error("wire: credential over its limits")
  end
  return tobytes(hash_credential(state, #id, id, secret), 16)
end

-- session_digest returns the digest of a device id and a token's session.
function M.session_digest(state, id, session)
  if #session > max_session then
    error("wire: session over its limits")
  end
  return tobytes(hash_credential(state, 0x80000000 + #id, id, session), 16)
end

-- device returns the bucket of a device, and the tag of its entry.
function M.device(state, id)
  local out, words = hash_credential(state, 0xffffffff, id, "")
  out[0] = band(out[0], 0xfc)
  return reduce(words[2], state.verdict_buckets), tobytes(out, 8)
end

-- parse_object reads the entry of size bytes, at least 40, after the first at bytes of rec, whose bytes are at p. It
-- returns nil and no reason if the entry's key is another one.
local function parse_object(rec, p, at, size, key)
  local e = p + at
  local key_size, etag_size, type_size, count = u16(e + 32), e[34], e[35], e[36]
  if count < 1 or count > 4 or size ~= 40 + count * 20 + key_size + etag_size + type_size then
    return nil, "malformed"
  end
  for i = 40, 20 + count * 20, 20 do
    if e[i] > 3 or u32(e + i + 8) > max_body then
      return nil, "malformed"
    end
  end
  local from = 40 + count * 20
  if key_size ~= #key or C.memcmp(e + from, key, key_size) ~= 0 then
    return nil
  end
  local variants = {}
  for i = 1, count do
    local v = 20 + i * 20
    variants[i] = {
      encoding = e[v], -- 0 identity, 1 gzip, 2 br, 3 zstd
      slot = u32(e + v + 4),
      length = u32(e + v + 8),
      stamp = sub(rec, at + v + 13, at + v + 20),
    }
  end
  local version = cast(u64p, e + 8)[0]
  local published, ttl = cast(i64p, e + 16)[0], cast(i64p, e + 24)[0]
  from = at + from + key_size
  return {
    version = version < 0x20000000000000ULL and tonumber(version) or version, -- a number if that is exact
    published_ms = tonumber(published),
    ttl_ms = tonumber(ttl), -- 0: fresh until changed
    expires_ms = tonumber(published + ttl), -- without meaning if ttl_ms is 0
    key = key,
    variants = variants,
    etag = sub(rec, from + 1, from + etag_size),
    content_type = sub(rec, from + etag_size + 1, from + etag_size + type_size),
  }
end

-- find_object looks up key in a bucket; rec is nil for a place never written. It returns the object, or nil and why
-- there is none.
function M.find_object(rec, epoch, tag, key)
  if not rec then
    return nil, "not found"
  end
  local p = cast(u8p, rec)
  local err = foreign(rec, p, objects_region, epoch)
  if err then
    return nil, err
  end
  local at = 16
  for _ = 1, u16(p + 2) do
    local left = #rec - at
    if left < 40 then
      return nil, "malformed"
    end
    local size = u32(p + at)
    if size < 40 or size > left then
      return nil, "malformed"
    end
    if u32(p + at + 4) == tag then
      local object
      object, err = parse_object(rec, p, at, size, key)
      if object or err then
        return object, err
      end
    end
    at = at + size
  end
  return nil, "not found"
end

-- find_body returns the bytes of a variant, or nil and why the slot doesn't have them.
function M.find_body(rec, epoch, variant)
  if not rec then
    return nil, "not found"
  end
  local p = cast(u8p, rec)
  local err = foreign(rec, p, bodies_region, epoch)
  if err then
    return nil, err
  end
  local length = u32(p + 4)
  if length > #rec - 24 then
    return nil, "malformed"
  end
  local stamp = variant.stamp
  if stamp == no_stamp or length ~= variant.length or cast(u64p, p)[2] ~= cast(u64p, stamp)[0] then
    return nil, "not found"
  end
  return sub(rec, 25, 24 + length)
end

-- device_status returns the status of a device by the count entries at p.
local function device_status(p, count, tag)
  local low, high = u32(cast(u8p, tag)), u32(cast(u8p, tag) + 4)
  for i = 0, count - 1 do
    if u32(p + i * 8 + 4) == high then
      local differs = bxor(u32(p + i * 8), low)
      if differs == 0 then
        return "registered"
      elseif differs == 2 then
        return "new"
      elseif differs == 1 then
        return "closed"
      end
    end
  end
  return "unregistered"
end

-- find_verdict looks up a credential in the bucket of its device; tag is the device's. It returns the status:
--   found         there is a verdict, the second result; the caller checks its expiry
--   closed        no verdict, and the device's only right secret is another one
--   registered    no verdict, and the device is registered
--   new           no verdict, and the device is registered, but never authenticated
--   unregistered  no verdict, and the device is not registered
--   unreadable    unknown; the third result is why there is no usable record
function M.find_verdict(rec, epoch, digest, tag)
  if not rec then
    return "unreadable", nil, "not found"
  end
  local p = cast(u8p, rec)
  local err = foreign(rec, p, verdicts_region, epoch)
  if err then
    return "unreadable", nil, err
  end
  local count, devices = u16(p + 2), u32(p + 4)
  if #rec - 16 < count * 48 + devices * 8 then
    return "unreadable", nil, "malformed"
  end
  local d = cast(u64p, digest)
  for i = 0, count - 1 do
    local e = p + 16 + i * 48
    local words = cast(u64p, e)
    if words[0] == d[0] and words[1] == d[1] then
      local outcome = e[40]
      if outcome ~= 1 and outcome ~= 2 then
        return "unreadable", nil, "malformed"
      end
      -- Everything is read before the table is made: that may collect rec, to which only pointers refer by then.
      local expires, refresh_after = i64(e + 24), i64(e + 32)
      local not_after, permissions = u16(e + 42) + u32(e + 44) * 65536, words[2]
      return "found",
        {
          permissions = permissions,
          expires_ms = expires,
          refresh_after_ms = refresh_after, -- 0: never
          not_after_ms = not_after, -- 0: never
          outcome = outcomes[outcome],
        }
    end
  end
  local status = device_status(p + 16 + count * 48, devices, tag) -- no tail call, which would let go of rec
  return status
end

-- check_op returns why no reader could use the record of an operation. It reads a whole state record: with a bad one
-- the edge would use an old one for ever.
local function check_op(region, index, record, epoch)
  local err = foreign(record, cast(u8p, record), region, epoch)
  if not err and region == state_region then
    if index ~= 0 then
      return ("at index %d, want 0: %s"):format(index, texts.malformed)
    end
    local _
    _, err = M.parse_state(record)
  end
  return texts[err]
end

-- parse_batch checks a whole batch, each record's header included. It returns the batch, or nil and the reason as Go
-- words it, with whether that is another layout.
function M.parse_batch(b)
  local size = #b
  if size < 24 then
    return nil, ("batch of %d bytes, want at least 24: %s"):format(size, texts.malformed)
  end
  local p = cast(u8p, b)
  if p[0] ~= layout then
    return nil,
      ("batch of layout version %d, want %d: run sidecar and module of the same release: %s"):format(
        p[0],
        layout,
        texts.layout
      ),
      true
  end
  local batch = { epoch = sub(b, 9, 16), replaces = sub(b, 17, 24), ops = {} }
  local count, at = u32(p + 4), 24
  for i = 0, count - 1 do
    local left = size - at - 12
    if left < 0 then
      return nil, ("operation %.0f of %.0f: truncated header: %s"):format(i, count, texts.malformed)
    end
    local region, index, length = p[at], u32(p + at + 4), u32(p + at + 8)
    if region > verdicts_region then
      return nil, ("operation %.0f: unknown region %d: %s"):format(i, region, texts.malformed)
    end
    if length > left then
      return nil, ("operation %.0f: %.0f bytes of record, %d are left: %s"):format(i, length, left, texts.malformed)
    end
    local record = sub(b, at + 13, at + 12 + length)
    local err = check_op(region, index, record, batch.epoch)
    if err then
      return nil, ("operation %.0f: %s record: %s"):format(i, regions[region], err)
    end
    batch.ops[i + 1] = { region = regions[region], index = index, record = record }
    at = at + 12 + length
  end
  if at < size then
    return nil, ("%d bytes after the last operation: %s"):format(size - at, texts.malformed)
  end
  return batch
end

-- append_verify_request returns the body of a call to /v1/verify or /v1/session. Everything is within its limits; the
-- source is an address as gatehouse.address writes it, or "". The secret is "" with a session, and the other way round.
function M.append_verify_request(id, secret, source, session)
  return char(layout, #id, #secret, #source, #session) .. id .. secret .. source .. session
end

-- check_message returns why b isn't a message of this layout and of at least least bytes; nil if it is one.
local function check_message(name, b, least)
  if #b < least then
    return ("%s of %d bytes, want at least %d: %s"):format(name, #b, least, texts.malformed)
  end
  local version = b:byte()
  if version ~= layout then
    return ("%s of layout version %d, want %d: run sidecar and module of the same release: %s"):format(
      name,
      version,
      layout,
      texts.layout
    )
  end
end

-- parse_verify_response reads the answer to /v1/verify, or returns nil and the reason.
function M.parse_verify_response(b)
  local err = check_message("verify response", b, 24)
  if err then
    return nil, err
  end
  local p = cast(u8p, b)
  local outcome = outcomes[p[1]]
  if #b ~= 24 or not outcome then
    return nil, ("verify response of %d bytes with outcome %d: %s"):format(#b, p[1], texts.malformed)
  end
  return {
    outcome = outcome,
    retry_after_s = u16(p + 2), -- unavailable and throttled only
    throttle_ms = u32(p + 4), -- how long the edge need not ask about others from this source, see wire/call.go
    permissions = cast(u64p, p)[1],
    epoch = sub(b, 17, 24), -- of the state whose names the permissions have
  }
end

-- parse_session_response reads the answer to /v1/session, or returns nil and the reason.
function M.parse_session_response(b)
  local err = check_message("session response", b, 12)
  if err then
    return nil, err
  end
  local p = cast(u8p, b)
  local outcome, length = outcomes[p[1]], #b - 12
  if not outcome or u32(p + 8) ~= length or (outcome == "allow") ~= (length > 0) then
    return nil, ("session response of %d bytes with outcome %d: %s"):format(#b, p[1], texts.malformed)
  end
  return { outcome = outcome, retry_after_s = u16(p + 2), throttle_ms = u32(p + 4), body = sub(b, 13) }
end

-- parse_fetch_response reads the answer to /v1/fetch, or returns nil and the reason. The answer's record is for
-- find_object, under its epoch and the tag 0. body(object, i) returns the bytes of the object's i-th variant, nil if
-- the answer is too short for it.
function M.parse_fetch_response(b)
  local err = check_message("fetch response", b, 8)
  if err then
    return nil, err
  end
  local length, left = u32(cast(u8p, b) + 4), #b - 8
  if length > left then
    return nil, ("fetch response: %.0f bytes of record, %d are left: %s"):format(length, left, texts.malformed)
  end
  local record = sub(b, 9, 8 + length)
  err = unusable(record, cast(u8p, record), objects_region)
  if err then
    return nil, "fetch response: objects record: " .. texts[err]
  end
  local function body(object, i)
    local from = 8 + length
    for k = 1, i - 1 do
      from = from + object.variants[k].length
    end
    local to = from + object.variants[i].length
    if to > #b then
      return nil
    end
    return sub(b, from + 1, to)
  end
  return { epoch = sub(record, 9, 16), record = record, body = body }
end

-- begin_hits starts a hit report: keys that were answered from shared memory, one for each sampled hit.
function M.begin_hits()
  return char(layout, 0, 0, 0)
end

-- append_hit adds a key within its limits to a report.
function M.append_hit(report, key)
  return report .. char(band(#key, 255), band(rshift(#key, 8), 255)) .. key
end

return M
