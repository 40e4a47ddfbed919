-- If-None-Match: etag.go in package policy is the reference.

local byte, find, sub = string.byte, string.find, string.sub

local M = {}

local TAB, SPACE, QUOTE, STAR, COMMA, SLASH, W = 0x09, 0x20, 0x22, 0x2a, 0x2c, 0x2f, 0x57

-- none_match reports whether one of the entity-tags of an If-None-Match list matches etag, a strong entity-tag with its
-- quotes, by weak comparison (RFC 9110, sections 8.8.3.2 and 13.1.2). Anything else ends the list. It reads each byte
-- at most twice, and nginx bounds a request's headers.
function M.none_match(list, etag)
  local from, to = 1, #list
  while from <= to and (byte(list, from) == SPACE or byte(list, from) == TAB) do
    from = from + 1
  end
  while to >= from and (byte(list, to) == SPACE or byte(list, to) == TAB) do
    to = to - 1
  end
  if from == to and byte(list, from) == STAR then
    return true
  end
  while true do
    while from <= to do
      local c = byte(list, from)
      if c ~= SPACE and c ~= TAB and c ~= COMMA then
        break
      end
      from = from + 1
    end
    if from < to and byte(list, from) == W and byte(list, from + 1) == SLASH then
      from = from + 2
    end
    if to - from < 1 or byte(list, from) ~= QUOTE then
      return false
    end
    local last = find(list, '"', from + 1, true)
    if not last then -- what was trimmed has no quote
      return false
    end
    if last - from + 1 == #etag and sub(list, from, last) == etag then
      return true
    end
    from = last + 1
  end
end

return M
