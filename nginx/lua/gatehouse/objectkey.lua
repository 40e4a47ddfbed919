-- The keys of objects: their spelling, and the part of a query that belongs to them. It mirrors packages objectkey and
-- limits, and the keys of package policy, byte for byte: an edge with another spelling would miss every object.

local byte, find, gsub, sub = string.byte, string.find, string.gsub, string.sub
local concat = table.concat

local M = {}

-- The limits of package limits.
local MAX_KEY, MAX_DEVICE_ID, MAX_PAIRS = 2048, 128, 64
M.MAX_DEVICE_ID = MAX_DEVICE_ID

local PERCENT, AMPERSAND, SLASH, QUESTION, AT, PLUS = 0x25, 0x26, 0x2f, 0x3f, 0x40, 0x2b

-- decoded and upper have what each well-formed escape is replaced with.
local decoded, upper = {}, {}
do
  local digits = "0123456789abcdefABCDEF"
  for i = 1, #digits do
    for j = 1, #digits do
      local hex = sub(digits, i, i) .. sub(digits, j, j)
      decoded["%" .. hex] = string.char(tonumber(hex, 16))
      upper["%" .. hex] = "%" .. hex:upper()
    end
  end
end

-- in_device_id has the bytes of a device id: visible ASCII without those that end one.
local in_device_id = {}
for c = 0, 255 do
  in_device_id[c] = c > 0x20 and c < 0x7f and not find('/?,"', string.char(c), 1, true)
end

-- percent_decode decodes all well-formed escapes and keeps the others.
local function percent_decode(s)
  if not find(s, "%", 1, true) then
    return s
  end
  return (gsub(s, "%%%x%x", decoded))
end
M.percent_decode = percent_decode

-- upper_escapes returns s with the hex digits of escapes in upper case.
local function upper_escapes(s)
  if not find(s, "%", 1, true) then
    return s
  end
  return (gsub(s, "%%%x%x", upper))
end
M.upper_escapes = upper_escapes

local function contains(names, name)
  for i = 1, #names do
    if names[i] == name then
      return true
    end
  end
  return false
end

-- named reports whether name is in names, as sent or decoded like a form.
local function named(name, names)
  if contains(names, name) then
    return true
  end
  for i = 1, #name do
    local c = byte(name, i)
    if c == PERCENT or c == PLUS then
      return contains(names, percent_decode((gsub(name, "+", " "))))
    end
  end
  return false
end

-- pairs_of and names_of have the pairs of the current query: one call at a time uses them, since none of them yields.
local pairs_of, names_of = {}, {}

-- insert puts a pair behind those whose names are not greater, so that pairs with the same name keep their order.
local function insert(count, pair, name)
  local low, high = 1, count + 1
  if count == 0 or names_of[count] <= name then -- most queries come in order
    low = high
  end
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if names_of[middle] <= name then
      low = middle + 1
    else
      high = middle
    end
  end
  for i = count, low, -1 do
    pairs_of[i + 1], names_of[i + 1] = pairs_of[i], names_of[i]
  end
  pairs_of[low], names_of[low] = pair, name
end

-- canonical_query returns the part of a query that belongs to a cache key: its pairs in bytewise order of their names,
-- without empty ones. If only is not nil, it removes pairs with other names.
local function canonical_query(query, only)
  local count, from, size = 0, 1, #query
  while from <= size do
    local to = find(query, "&", from, true) or size + 1
    if to > from then
      local pair = sub(query, from, to - 1)
      local equals = find(pair, "=", 1, true)
      local name = equals and sub(pair, 1, equals - 1) or pair
      if only == nil or named(name, only) then
        insert(count, pair, name)
        count = count + 1
      end
    end
    from = to + 1
  end
  if count == 0 then
    return ""
  end
  return count == 1 and pairs_of[1] or concat(pairs_of, "&", 1, count)
end
M.canonical_query = canonical_query

-- valid_query reports whether a query, which begins at from, has at most MAX_PAIRS pairs, empty ones included.
local function valid_query(target, from)
  local count = 1
  for i = from, #target do
    if byte(target, i) == AMPERSAND then
      count = count + 1
    end
  end
  return count <= MAX_PAIRS
end

-- valid_device_id reports whether id can name a device, see package limits.
local function valid_device_id(id)
  local size = #id
  if size == 0 or size > MAX_DEVICE_ID then
    return false
  end
  for i = 1, size do
    if not in_device_id[byte(id, i)] then
      return false
    end
  end
  return true
end
M.valid_device_id = valid_device_id

-- valid_key reports whether key can name an object, see package limits.
function M.valid_key(key)
  local size = #key
  if size == 0 or size > MAX_KEY then
    return false
  end
  local ampersands, in_query = 0, false
  for i = 1, size do
    local c = byte(key, i)
    if c <= 0x20 or c >= 0x7f then
      return false
    end
    if in_query then
      if c == AMPERSAND then
        ampersands = ampersands + 1
      end
    elseif c == QUESTION then
      in_query = true
    end
  end
  if ampersands >= MAX_PAIRS then
    return false
  end
  if byte(key) == AT then
    local slash = find(key, "/", 2, true)
    return slash ~= nil and valid_device_id(sub(key, 2, slash - 1))
  end
  return byte(key) == SLASH
end

-- split returns path and query of a target; nil if it is too long to be parsed, or has too many parameters.
local function split(target)
  if #target > 2 * MAX_KEY then
    return nil
  end
  local question = find(target, "?", 1, true)
  if not question then
    return target, ""
  end
  if not valid_query(target, question + 1) then
    return nil
  end
  return sub(target, 1, question - 1), sub(target, question + 1)
end

-- counts returns the part of a target on which the key may depend under a rule that names parameters: without the query
-- if it names none.
function M.counts(target, cache)
  return #cache.query == 0 and split(target) or target
end

-- key returns the cache key of a request for target under a rule; nil if it would be too long, or the target is too
-- long to be parsed.
function M.key(target, cache, device)
  if #target > 2 * MAX_KEY then -- spares the escapes of what has no key
    return nil
  end
  local path, query = split(upper_escapes(target))
  if not path then
    return nil
  end
  local all = path
  if query ~= "" then
    query = canonical_query(query, cache.query)
  end
  if cache.per_device then
    all = query ~= "" and "@" .. device .. path .. "?" .. query or "@" .. device .. path
  elseif query ~= "" then
    all = path .. "?" .. query
  end
  if #all > MAX_KEY then
    return nil
  end
  return all
end

return M
