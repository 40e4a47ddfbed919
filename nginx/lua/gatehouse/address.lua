-- Addresses of clients, as Go's package net/netip reads and writes them: the sidecar compares the same texts.

local bit = require "bit"

local byte, char, find, format, sub = string.byte, string.char, string.find, string.format, string.sub
local concat = table.concat

local M = {}

-- ipv4 returns the four bytes of the address in s from position at, or nil.
local function ipv4(s, at)
  local octets, value, digits = {}, 0, 0
  for i = at, #s do
    local c = byte(s, i)
    if c >= 48 and c <= 57 then
      if digits == 1 and value == 0 then
        return nil -- a leading zero may mean octal elsewhere
      end
      value, digits = value * 10 + c - 48, digits + 1
      if value > 255 then
        return nil
      end
    elseif c == 46 and digits > 0 and #octets < 3 then
      octets[#octets + 1], value, digits = value, 0, 0
    else
      return nil
    end
  end
  if #octets < 3 or digits == 0 then
    return nil
  end
  return octets[1], octets[2], octets[3], value
end

-- ipv6 returns the eight words of the address in s, whose zone it drops, or nil.
local function ipv6(s)
  local zone = find(s, "%", 1, true)
  if zone then
    if zone == #s then
      return nil
    end
    s = sub(s, 1, zone - 1)
  end
  local words, gap, at = {}, nil, 1 -- gap is the number of words before "::"
  if sub(s, 1, 2) == "::" then
    gap, at = 0, 3
  end
  while #words < 8 and at <= #s do
    local digits = #s:match("^%x*", at)
    if digits == 0 or digits > 4 then
      return nil
    end
    if byte(s, at + digits) == 46 then
      if #words > 6 or not gap and #words ~= 6 then
        return nil
      end
      local a, b, c, d = ipv4(s, at)
      if not a then
        return nil
      end
      words[#words + 1] = a * 256 + b
      words[#words + 1] = c * 256 + d
      at = #s + 1
      break
    end
    words[#words + 1] = tonumber(sub(s, at, at + digits - 1), 16)
    at = at + digits
    if at > #s then
      break
    end
    if byte(s, at) ~= 58 or at == #s then
      return nil
    end
    at = at + 1
    if byte(s, at) == 58 then
      if gap then
        return nil
      end
      gap, at = #words, at + 1
    end
  end
  if at <= #s or (#words < 8) ~= (gap ~= nil) then
    return nil
  end
  local missing = 8 - #words
  if missing > 0 then
    for i = #words, gap + 1, -1 do
      words[i + missing] = words[i]
    end
    for i = gap + 1, gap + missing do
      words[i] = 0
    end
  end
  return words
end

-- fields returns the four bytes of an IPv4 address or, as one table, the eight words of an IPv6 address; nil if s is
-- neither.
local function fields(s)
  local mark = s:match("[.:%%]")
  if mark == "." then
    return ipv4(s, 1)
  elseif mark == ":" then
    return ipv6(s)
  end
end

-- unmap replaces an IPv6 address that maps an IPv4 one.
local function unmap(a, b, c, d)
  if b or not a then
    return a, b, c, d
  end
  if a[6] ~= 0xffff or a[1] + a[2] + a[3] + a[4] + a[5] ~= 0 then
    return a
  end
  return bit.rshift(a[7], 8), bit.band(a[7], 255), bit.rshift(a[8], 8), bit.band(a[8], 255)
end

-- text returns the canonical text of an address (RFC 5952); "" without one.
local function text(a, b, c, d)
  a, b, c, d = unmap(a, b, c, d)
  if not a then
    return ""
  end
  if b then
    return a .. "." .. b .. "." .. c .. "." .. d
  end
  local from, zeroes = 9, 1 -- the longest run of two or more zeroes, the first of several
  for i = 1, 8 do
    local j = i
    while a[j] == 0 do
      j = j + 1
    end
    if j - i > zeroes then
      from, zeroes = i, j - i
    end
  end
  local parts, i = {}, 1
  while i <= 8 do
    if i == from then
      parts[#parts + 1] = "::"
      i = i + zeroes
    else
      parts[#parts + 1] = format(i > 1 and i ~= from + zeroes and ":%x" or "%x", a[i])
      i = i + 1
    end
  end
  return concat(parts)
end

-- with_port returns the address in "address:port" or "[address]:port".
local function with_port(s)
  local ip, port = s:match("^(.+):(%d+)$")
  if not ip or #port:match("^0*(.*)$") > 5 or tonumber(port) > 65535 then
    return nil
  end
  local bracketed = byte(ip) == 91
  if bracketed then
    if #ip < 2 or byte(ip, -1) ~= 93 then
      return nil
    end
    ip = sub(ip, 2, -2)
  end
  local a, b, c, d = fields(ip)
  if not a or bracketed == (b ~= nil) then
    return nil
  end
  return a, b, c, d
end

-- trim returns s without spaces and tabs around it. One pattern for both ends would take quadratic time.
local function trim(s)
  local from, to = find(s, "[^ \t]"), #s
  if not from then
    return ""
  end
  while byte(s, to) == 32 or byte(s, to) == 9 do
    to = to - 1
  end
  return sub(s, from, to)
end

-- parse parses s as an IP address, with or without a port, and returns its canonical form, for the comparison of
-- sources; "" if it is invalid.
function M.parse(s)
  s = trim(s)
  local a, b, c, d = with_port(s)
  if a then
    return text(a, b, c, d)
  end
  if byte(s) == 91 then
    s = sub(s, 2)
  end
  if byte(s, -1) == 93 then
    s = sub(s, 1, -2)
  end
  return text(fields(s))
end

-- network returns the part of an address that identifies a source: the four bytes of an IPv4 address, or the first
-- eight of an IPv6 address, within which a client can choose any; nil if s is not an address.
function M.network(s)
  local a, b, c, d = unmap(fields(s))
  if not a then
    return nil
  end
  if b then
    return char(a, b, c, d)
  end
  local out = {}
  for i = 1, 4 do
    out[i] = char(bit.rshift(a[i], 8), bit.band(a[i], 255))
  end
  return concat(out)
end

return M
