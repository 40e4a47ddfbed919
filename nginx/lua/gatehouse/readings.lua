-- All readings of a path by routers, followed at once and byte by byte along the rules' paths: readings.go in package
-- policy is the reference and has the reasons. Both must find the same readings, or a path that one edge refuses could
-- pass the other one.
--
-- The rules' paths are a trie here. A reading is a node of it, and two flags, in one number, so that sets of readings
-- are arrays of numbers.

local bit = require "bit"

local objectkey = require "gatehouse.objectkey"

local band, bor, lshift, rshift = bit.band, bit.bor, bit.lshift, bit.rshift
local byte, find, gsub, sub = string.byte, string.find, string.gsub, string.sub
local percent_decode = objectkey.percent_decode

local M = {}

-- max_parts bounds the segments and parameters of a path. A path with more is ambiguous, rule or not.
local max_parts = 256
M.max_parts = max_parts

-- max_choices bounds the places of a path that routers read differently while a rule may still match, max_lines its
-- lines, max_path a path and max_escaped a path with escapes, in bytes, max_spots a set of readings. Beyond these the
-- path is ambiguous.
local max_choices = 64
local max_lines = 4
local max_path = 8192
local max_escaped = 4096
local max_spots = 12

-- max_decoded is the maximum number of decodings of a path: by one router, and again by a second one behind it.
local max_decoded = 2

-- The classes tell how routers may read a byte of a path, decoded or not.
local letter = 0 -- stands only for itself
local dot = 1
local slash = 2 -- including a backslash
local odd = 3 -- may end the path or a segment, or be removed
local high = 4 -- part of a UTF-8 sequence, or invalid
local escape = 5 -- stands for itself in a path that is not decoded any more
M.letter, M.dot, M.slash, M.odd, M.high, M.escape = letter, dot, slash, odd, high, escape

local LINE_FEED, RETURN, PERCENT, DOT, SLASH, SEMICOLON, BACKSLASH = 0x0a, 0x0d, 0x25, 0x2e, 0x2f, 0x3b, 0x5c

-- classes begins at 0, like bytes.
local classes = {}
for c = 0, 255 do
  classes[c] = letter
  if c <= 0x20 or c == 0x7f or find("?#;", string.char(c), 1, true) then
    classes[c] = odd
  elseif c >= 0x80 then
    classes[c] = high
  end
end
classes[DOT], classes[SLASH], classes[BACKSLASH], classes[PERCENT] = dot, slash, slash, escape
M.classes = classes

-- bare returns path without slashes at its end.
local function bare(path)
  local size = #path
  while size > 1 and byte(path, size) == SLASH do
    size = size - 1
  end
  return sub(path, 1, size)
end
M.bare = bare

-- A spot is the position of a reading: a node of the trie, and flags.
local removed_dots = 2 -- it has removed dots, so the segment must end now
-- more means that no rule's path has what follows the node: anything for a found spot, slashes for others, which are
-- ignored at the end of the path.
local more = 1
local flags = 2 -- their bits
local root = 0

-- The rules' paths whose readings are followed now. Nothing here yields, so one path at a time is read.
local edges -- node * 256 + byte: the node that continues it
local ends_in_slash -- by node: its text does
local ascii -- the rules' paths are ASCII

-- The front: the position of all readings.
local live, live_count = {}, 0 -- everything read so far counts
local waiting, waiting_count = {}, 0 -- the same, but the rest of this segment is removed
local dots = 0 -- bit n: the segment may be n dots so far
local after_odd = false -- the last character was odd

local found, found_count = {}, 0 -- where a reading ended, or left the rules' paths
local parts = 0 -- of the path in its current decoding
local choices = 0
local lines = 0
local lost = false -- the path climbs, or exceeds a bound

local was = {} -- the live spots before the current byte
local held = {} -- the waiting ones
local live_before, waiting_before = {}, {} -- the front before a sequence with two readings

-- climbing is the bit of dots for a segment "..".
local climbing = 4

-- add_text adds a text to the trie.
local function add_text(r, text)
  local node = root
  for i = 1, #text do
    local c = byte(text, i)
    local at = node * 256 + c
    local child = r.edges[at]
    if not child then
      child = r.nodes + 1
      r.nodes, r.edges[at] = child, child
      r.parents[child], r.ends_in_slash[child] = node, c == SLASH
    end
    node = child
    r.ascii = r.ascii and c < 0x80
  end
end

-- new returns what read needs for the paths of these rules: a trie of them.
function M.new(rules)
  local r = { edges = {}, ends_in_slash = { [root] = false }, parents = {}, nodes = root, ascii = true }
  for i = 1, #rules do
    if rules[i].prefix then
      add_text(r, rules[i].prefix)
    else
      local path = bare(rules[i].path)
      add_text(r, path)
      if path ~= "/" then
        add_text(r, path .. "/")
      end
    end
  end
  return r
end

-- node returns the node of a text in the trie.
function M.node(r, text)
  local node = root
  for i = 1, #text do
    node = r.edges[node * 256 + byte(text, i)]
  end
  return node
end

local function add_found(spot)
  for i = 1, found_count do
    if found[i] == spot then
      return
    end
  end
  if found_count == max_spots then
    lost = true
    return
  end
  found_count = found_count + 1
  found[found_count] = spot
end

local function add_live(spot)
  for i = 1, live_count do
    if live[i] == spot then
      return
    end
  end
  if live_count == max_spots then
    lost = true
    return
  end
  live_count = live_count + 1
  live[live_count] = spot
end

local function add_waiting(spot)
  for i = 1, waiting_count do
    if waiting[i] == spot then
      return
    end
  end
  if waiting_count == max_spots then
    lost = true
    return
  end
  waiting_count = waiting_count + 1
  waiting[waiting_count] = spot
end

-- leave ends a reading that no rule's path continues.
local function leave(spot)
  add_found(bor(lshift(rshift(spot, flags), flags), more))
end

-- leave_all ends readings at a character that no rule has.
local function leave_all()
  for i = 1, live_count do
    if band(live[i], removed_dots) == 0 then
      leave(live[i])
    end
  end
end

-- climb marks the path as ambiguous if the segment that ends here may be "..".
local function climb()
  if band(dots, climbing) ~= 0 then
    lost = true
  end
end

-- finish ends all readings here, which may be the end of the path.
local function finish()
  climb()
  for i = 1, live_count do
    add_found(lshift(rshift(live[i], flags), flags))
  end
end

-- extend continues one reading with c.
local function extend(spot, c)
  if band(spot, removed_dots) ~= 0 then -- another reading has kept them
    return
  end
  local child = edges[rshift(spot, flags) * 256 + c]
  if not child or band(spot, more) ~= 0 then
    return leave(spot)
  end
  add_live(lshift(child, flags))
end

-- take_live empties the live spots, and returns how many there were; was has them.
local function take_live()
  local count = live_count
  was, live, live_count = live, was, 0
  return count
end

-- read_letter continues the readings with c.
local function read_letter(c)
  after_odd, dots = false, 0
  if live_count == 0 then
    return
  end
  local count = take_live()
  for i = 1, count do
    extend(was[i], c)
  end
end

-- read_dot continues with a dot that is read or removed.
local function read_dot()
  dots = band(lshift(dots, 1), 0xff)
  after_odd = false
  local count = take_live()
  for i = 1, count do
    local spot = was[i]
    extend(spot, DOT)
    add_live(bor(spot, removed_dots))
  end
end

-- end_segment continues one reading with a slash.
local function end_segment(spot)
  spot = bor(lshift(rshift(spot, flags), flags), band(spot, more))
  local node = rshift(spot, flags)
  if not ends_in_slash[node] then
    return extend(spot, SLASH)
  end
  if edges[root * 256 + SLASH] == node then -- as in //host/path
    add_waiting(root)
  end
  add_live(spot)
  add_live(bor(spot, more))
end

-- read_slash ends a segment with c, or does not if that is a backslash.
local function read_slash(c)
  climb()
  dots, after_odd = 1, false
  if live_count + waiting_count == 0 then
    return
  end
  local held_count = waiting_count
  for i = 1, held_count do
    held[i] = waiting[i]
  end
  if c == BACKSLASH then
    leave_all()
  else
    waiting_count = 0
  end
  local count = take_live()
  for i = 1, count do
    end_segment(was[i])
  end
  for i = 1, held_count do
    end_segment(held[i])
  end
end

-- read_odd continues with a character that is read (which no rule has), removed, or ends the path or its segment.
-- Another one right after it changes nothing, except after the end of a line, where a path begins.
local function read_odd(c)
  local line = c == LINE_FEED or c == RETURN
  if after_odd and not line then
    return
  end
  after_odd = not line
  finish()
  leave_all()
  for i = 1, live_count do
    add_waiting(live[i])
  end
  if line then
    lines = lines + 1
    add_live(root)
  end
end

-- decode_rune returns the character that path has at i, and its size; like Go's utf8.DecodeRuneInString it returns nil
-- and 1 for invalid UTF-8.
local function decode_rune(path, i)
  local a, b = byte(path, i), byte(path, i + 1)
  if a < 0xc2 or a > 0xf4 or not b then
    return nil, 1
  end
  if a < 0xe0 then
    if b < 0x80 or b > 0xbf then
      return nil, 1
    end
    return band(a, 0x1f) * 64 + band(b, 0x3f), 2
  end
  local c = byte(path, i + 2)
  if not c or c < 0x80 or c > 0xbf then
    return nil, 1
  end
  if a < 0xf0 then
    if b < (a == 0xe0 and 0xa0 or 0x80) or b > (a == 0xed and 0x9f or 0xbf) then
      return nil, 1
    end
    return band(a, 0x0f) * 4096 + band(b, 0x3f) * 64 + band(c, 0x3f), 3
  end
  local d = byte(path, i + 3)
  if not d or d < 0x80 or d > 0xbf or b < (a == 0xf0 and 0x90 or 0x80) or b > (a == 0xf4 and 0x8f or 0xbf) then
    return nil, 1
  end
  return band(a, 0x07) * 262144 + band(b, 0x3f) * 4096 + band(c, 0x3f) * 64 + band(d, 0x3f), 4
end

-- space reports whether c, which isn't ASCII, is white space, as Go's unicode.IsSpace does.
local function space(c)
  return c == 0x85
    or c == 0xa0
    or c == 0x1680
    or c >= 0x2000 and c <= 0x200a
    or c == 0x2028
    or c == 0x2029
    or c == 0x202f
    or c == 0x205f
    or c == 0x3000
end

-- blank reports whether some routers trim c, which isn't ASCII, off a text. U+FEFF is a space in JavaScript.
local function blank(c)
  return c <= 0x9f or c == 0xfeff or space(c)
end

-- overlong returns the ASCII character that path has at i in more bytes than necessary, and its size; nil if there is
-- none (RFC 3629, section 3).
local function overlong(path, i)
  local first = byte(path, i)
  local c, size
  if first == 0xc0 or first == 0xc1 then
    c, size = first - 0xc0, 2
  elseif first == 0xe0 then
    c, size = 0, 3
  elseif first == 0xf0 then
    c, size = 0, 4
  else
    return nil
  end
  if #path - i + 1 < size then
    return nil
  end
  for at = i + 1, i + size - 1 do
    local b = byte(path, at)
    if b < 0x80 or b > 0xbf then
      return nil
    end
    c = c * 64 + b - 0x80
  end
  if c >= 0x80 then
    return nil
  end
  return c, size
end

-- overlong_choices is the number of choices that a sequence counts as if it may be another character: no honest path
-- has it.
local overlong_choices = 7

-- read_invalid does what read_high does, for invalid UTF-8.
local function read_invalid(path, i)
  local c, size = overlong(path, i)
  if not c then
    c, size = byte(path, i), 1
  end
  if live_count + waiting_count == 0 and c ~= LINE_FEED and c ~= RETURN then
    climb()
    local class = classes[c]
    if class == slash then
      dots = bor(dots, 1)
    elseif class == dot then
      dots = band(bor(dots, lshift(dots, 1)), 0xff)
    end
    return size
  end
  if c >= 0x80 and ascii then
    if after_odd then
      choices = choices - 1
    end
    read_odd(c)
    return size
  end
  choices = choices + overlong_choices
  -- Both readings begin at the same front, first the one in which c is odd.
  local live_was, waiting_was, dots_was, after_odd_was = live_count, waiting_count, dots, after_odd
  for at = 1, live_was do
    live_before[at] = live[at]
  end
  for at = 1, waiting_was do
    waiting_before[at] = waiting[at]
  end
  read_odd(c)
  local live_odd, waiting_odd, dots_odd = live_count, waiting_count, dots
  live, live_before, waiting, waiting_before = live_before, live, waiting_before, waiting
  live_count, waiting_count, dots, after_odd = live_was, waiting_was, dots_was, after_odd_was
  local class = classes[c]
  if c >= 0x80 then -- a character of ISO 8859-1
    read_letter(c < 0xc0 and 0xc2 or 0xc3)
    read_letter(c < 0xc0 and c or c - 0x40)
  elseif class == slash then
    read_slash(SLASH)
  elseif class == dot then
    read_dot()
  elseif class ~= odd then
    read_letter(c)
  end
  for at = 1, live_odd do
    add_live(live_before[at])
  end
  for at = 1, waiting_odd do
    add_waiting(waiting_before[at])
  end
  dots = bor(dots, dots_odd)
  return size
end

-- read_high continues with the start of text that isn't ASCII, and returns its size.
local function read_high(path, i)
  local c, size = decode_rune(path, i)
  if not c then
    return read_invalid(path, i)
  end
  if blank(c) then
    read_odd(c)
    return size
  end
  for at = i, i + size - 1 do
    read_letter(byte(path, at))
  end
  return size
end

-- skim does what follow does from byte i on, while no reading can match a rule. It returns the index where that ends.
local function skim(path, i, size)
  local run = dots
  while i <= size do
    local c = byte(path, i)
    local class = classes[c]
    if class == letter or class == escape then
      run = 0
    elseif class == high then
      -- Without dots it matters only if it may be overlong.
      if run ~= 0 or c == 0xc0 or c == 0xc1 or c == 0xe0 or c == 0xf0 then
        dots, after_odd = run, false
        i = i + read_high(path, i) - 1
        if live_count + waiting_count ~= 0 then -- a path begins behind an overlong line feed
          return i + 1
        end
        run = dots
      end
    elseif class == dot then
      run = band(lshift(run, 1), 0xff)
      if size > max_escaped then
        parts = parts + 1
        if parts > max_parts then
          lost = true
          return size + 1
        end
      end
    else
      if band(run, climbing) ~= 0 or c == LINE_FEED or c == RETURN then
        break
      end
      if class == slash then
        run = 1
        parts = parts + 1
      elseif c == SEMICOLON then
        parts = parts + 1
      end
      if parts > max_parts then
        lost = true
        return size + 1
      end
    end
    i = i + 1
  end
  dots, after_odd = run, false
  return i
end

-- follow follows the readings of a path, decoded as often as some router does.
local function follow(path)
  live_count, waiting_count, dots, after_odd = 0, 0, 1, false
  parts = 0
  add_live(root)
  if classes[byte(path)] ~= slash then -- a URL with scheme and host, or a path to which some routers prepend a slash
    add_waiting(root)
    read_slash(SLASH)
    add_live(root)
    add_waiting(root)
  end
  local i, size = 1, #path
  while i <= size and not lost do
    if live_count + waiting_count == 0 then
      i = skim(path, i, size)
      if i > size then
        break
      end
    end
    local c = byte(path, i)
    local class = classes[c]
    if class == letter or class == escape then
      read_letter(c)
    else
      if class == slash or c == SEMICOLON then
        parts = parts + 1
      elseif live_count > 0 and not (after_odd and class == odd) then
        choices = choices + 1
      end
      if class == dot then
        read_dot()
      elseif class == slash then
        read_slash(c)
      elseif class == odd then
        read_odd(c)
      else
        i = i + read_high(path, i) - 1
      end
      if parts > max_parts or choices > max_choices or lines > max_lines then
        lost = true
      end
    end
    i = i + 1
  end
  finish()
end

-- read finds the ends of all readings of path, which has no query and isn't empty. It returns how many there are; nil
-- if the path is ambiguous. See end_of.
function M.read(r, path)
  found_count, choices, lines, lost = 0, 0, 0, false
  local size = #path
  if size > max_path or size > max_escaped and find(path, "%", 1, true) then
    return nil
  end
  edges, ends_in_slash, ascii = r.edges, r.ends_in_slash, r.ascii
  follow(path)
  for _ = 1, max_decoded do
    if lost then
      break
    end
    local decoded = percent_decode(path)
    if #decoded == #path then
      break
    end
    path = decoded
    follow(path)
  end
  if lost then
    return nil
  end
  return found_count
end

-- end_of returns where the reading i that read found ended: a node, and whether the path goes on behind it, with what
-- no rule's path has.
function M.end_of(i)
  return rshift(found[i], flags), band(found[i], more) ~= 0
end

-- The white space that isn't ASCII, as Go's strings.TrimSpace removes it, in UTF-8.
local spaces = {
  "\194\133",
  "\194\160",
  "\225\154\128",
  "\226\128\168",
  "\226\128\169",
  "\226\128\175",
  "\226\129\159",
  "\227\128\128",
}
for c = 0x80, 0x8a do
  spaces[#spaces + 1] = "\226\128" .. string.char(c)
end

-- trim returns s without white space at its ends.
local function trim(s)
  local from, to = 1, #s
  local again = true
  while again and from <= to do
    again = false
    if find(sub(s, from, from), "^[\t-\r ]") then
      from, again = from + 1, true
    else
      for i = 1, #spaces do
        if from + #spaces[i] - 1 <= to and sub(s, from, from + #spaces[i] - 1) == spaces[i] then
          from, again = from + #spaces[i], true
          break
        end
      end
    end
  end
  again = true
  while again and from <= to do
    again = false
    if find(sub(s, to, to), "^[\t-\r ]") then
      to, again = to - 1, true
    else
      for i = 1, #spaces do
        if to - #spaces[i] + 1 >= from and sub(s, to - #spaces[i] + 1, to) == spaces[i] then
          to, again = to - #spaces[i], true
          break
        end
      end
    end
  end
  return sub(s, from, to)
end

-- upper_method returns the other reading of a method: without white space at its ends, in upper case. Two characters
-- that aren't ASCII have a letter of ASCII in upper case (U+0131 and U+017F); what else isn't ASCII stays, since no
-- rule's method has it.
function M.upper_method(method)
  return (gsub(gsub(trim(method):upper(), "\196\177", "I"), "\197\191", "S"))
end

return M
