-- Accept-Encoding: encoding.go in package policy is the reference.

local byte, find, lower, sub = string.byte, string.find, string.lower, string.sub

local M = {}

-- The codings that can be stored, by their numbers in package wire. To Go's strings.EqualFold, U+017F is an s.
local identity = 0
local codings = {
  identity = identity,
  gzip = 1,
  ["x-gzip"] = 1,
  br = 2,
  zstd = 3,
  ["z\197\191td"] = 3,
}
local encodings = 4

-- fallback is the weight of identity for a client that doesn't name it, in halves of a thousandth: acceptable, but
-- below everything that it names.
local fallback = 1

local TAB, SPACE, ZERO, ONE, NINE, DOT, EQUALS, Q, q = 0x09, 0x20, 0x30, 0x31, 0x39, 0x2e, 0x3d, 0x51, 0x71

-- trimmed returns where list[from..to] begins and ends without blanks.
local function trimmed(list, from, to)
  while from <= to and (byte(list, from) == SPACE or byte(list, from) == TAB) do
    from = from + 1
  end
  while to >= from and (byte(list, to) == SPACE or byte(list, to) == TAB) do
    to = to - 1
  end
  return from, to
end

-- quality returns the q parameter in list[from..to] in thousandths; absent is 1000, malformed is 0.
local function quality(list, from, to)
  from, to = trimmed(list, from, to)
  if from > to then
    return 1000
  end
  local first = byte(list, from)
  local size = to - from - 1 -- of the value
  if size < 1 or first ~= Q and first ~= q or byte(list, from + 1) ~= EQUALS then
    return 0
  end
  local whole = byte(list, from + 2)
  if whole ~= ZERO and whole ~= ONE or size > 5 or size > 1 and byte(list, from + 3) ~= DOT then
    return 0
  end
  local weight, scale = (whole - ZERO) * 1000, 100
  for i = from + 4, to do
    local c = byte(list, i)
    if c < ZERO or c > NINE then
      return 0
    end
    weight = weight + (c - ZERO) * scale
    scale = scale / 10
  end
  return weight < 1000 and weight or 1000
end

-- weights has the weight of each coding in the current list, in thousandths by RFC 9110, section 12.5.3; unset for one
-- that is neither named nor covered by "*".
local weights = {}
local unset = -1

local function parse(list)
  local star = unset
  for e = 0, encodings - 1 do
    weights[e] = unset
  end
  local from, size = 1, #list
  while from <= size do
    local to = (find(list, ",", from, true) or size + 1) - 1
    local semicolon = find(list, ";", from, true)
    local name_to, params = to, to + 1
    if semicolon and semicolon <= to then
      name_to, params = semicolon - 1, semicolon + 1
    end
    local weight = quality(list, params, to)
    local name_from
    name_from, name_to = trimmed(list, from, name_to)
    local name = lower(sub(list, name_from, name_to))
    if name == "*" then
      star = weight
    elseif codings[name] then
      weights[codings[name]] = weight
    end
    from = to + 2
  end
  for e = 0, encodings - 1 do
    if weights[e] == unset then
      weights[e] = star
    end
  end
end

-- choose returns the position of the variant that the client prefers, the shorter one of two with the same weight; nil
-- if it accepts none.
function M.choose(variants, accept_encoding)
  if accept_encoding == "" then -- any coding or none may be acceptable; identity surely is
    for i = 1, #variants do
      if variants[i].encoding == identity then
        return i
      end
    end
    return nil
  end
  parse(accept_encoding)
  local best, best_weight = nil, 0
  for i = 1, #variants do
    local variant = variants[i]
    local weight = 2 * weights[variant.encoding]
    if weight < 0 then -- not named
      weight = variant.encoding == identity and fallback or 0
    end
    if weight > best_weight or weight == best_weight and best and variant.length < variants[best].length then
      best, best_weight = i, weight
    end
  end
  return best
end

return M
