-- Reads the headers that decisions depend on in one pass over the request's, and makes strings only of these.

local base = require "resty.core.base"
require "resty.core.request" -- declares the functions below
local ffi = require "ffi"

local C, cast, string_of = ffi.C, ffi.cast, ffi.string
local get_request, get_buffer = base.get_request, base.get_string_buf
local byte = string.byte

ffi.cdef "int memcmp(const void *a, const void *b, size_t n);"

local elements = ffi.typeof "ngx_http_lua_ffi_table_elt_t *"
local element_size = ffi.sizeof "ngx_http_lua_ffi_table_elt_t"
local truncated = ffi.new "int[1]"

local M = {}

local Reader = {}
Reader.__index = Reader

-- new returns a reader of the headers in names, and in removed: those that no upstream gets, in any spelling. secret is
-- the header whose other spellings no upstream of an authenticated request gets, nil for none. All are in lower case.
function M.new(names, removed, secret)
  local by_length = {}
  local function add(name, kind)
    local list = by_length[#name] or {}
    by_length[#name] = list
    list[#list + 1] = { name = name, kind = kind }
  end
  for _, name in ipairs(names) do
    add(name, name == secret and "secret" or "read")
  end
  for _, name in ipairs(removed) do
    add(name, "removed")
  end
  return setmetatable({ by_length = by_length }, Reader)
end

-- spells reports whether an upstream may read the name at p as header, which has the same length: many don't
-- distinguish '-' and '_', and some (CGI) none of the characters that are neither letters nor digits.
local function spells(p, header)
  for i = 1, #header do
    local c, want = p[i - 1], byte(header, i)
    if c ~= want and (want ~= 0x2d or c >= 0x61 and c <= 0x7a or c >= 0x30 and c <= 0x39) then
      return false
    end
  end
  return true
end

-- text returns a value without white space around it, of which nginx removes only spaces (RFC 9110, section 5.5).
local function text(value)
  local from, to = value.data, value.len
  while to > 0 and (from[0] == 0x09 or from[0] == 0x20) do
    from, to = from + 1, to - 1
  end
  while to > 0 and (from[to - 1] == 0x09 or from[to - 1] == 0x20) do
    to = to - 1
  end
  return string_of(from, to)
end

-- add adds a line to headers: a value, or an array of the values of several lines.
local function add(headers, name, value)
  local before = headers[name]
  if before == nil then
    headers[name] = value
  elseif type(before) == "table" then
    before[#before + 1] = value
  else
    headers[name] = { before, value }
  end
end
M.add = add

-- read returns the current request's headers by name: a value, or an array of the values of several lines; and the
-- names of those that no upstream gets, and of other spellings of the secret's, nil for none.
function Reader:read()
  local r = get_request()
  local count = C.ngx_http_lua_ffi_req_get_headers_count(r, 0, truncated)
  if count < 0 then
    error("gatehouse: read headers")
  end
  local headers, removed, spelled = {}, nil, nil
  if count == 0 then
    return headers
  end
  local all = cast(elements, get_buffer(count * element_size))
  if C.ngx_http_lua_ffi_req_get_headers(r, all, count, 0) ~= 0 then
    error("gatehouse: read headers")
  end
  local by_length = self.by_length
  for i = 0, count - 1 do
    local key = all[i].key
    local candidates = by_length[key.len]
    for k = 1, candidates and #candidates or 0 do
      local known = candidates[k]
      local name, kind = known.name, known.kind
      if C.memcmp(key.data, name, #name) == 0 then
        if kind == "removed" then
          removed = removed or {}
          removed[#removed + 1] = name
        else
          add(headers, name, text(all[i].value))
        end
      elseif kind ~= "read" and spells(key.data, name) then
        if kind == "removed" then
          removed = removed or {}
          removed[#removed + 1] = string_of(key.data, key.len)
        else
          spelled = spelled or {}
          spelled[#spelled + 1] = string_of(key.data, key.len)
        end
      end
    end
  end
  return headers, removed, spelled
end

return M
