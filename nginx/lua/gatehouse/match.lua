-- Which rule governs a request: match.go in package policy is the reference. The plugin decides this for every request,
-- so the rules' paths are prepared as a trie whose nodes have the rule of each method.

local readings = require "gatehouse.readings"

local byte, find, sub = string.byte, string.find, string.sub
local read, end_of, upper_method = readings.read, readings.end_of, readings.upper_method

local M = {}

-- max_plain bounds a plain path, in bytes: none within it has more than max_parts segments.
local max_plain = 2 * readings.max_parts

-- max_method bounds a method that isn't plain, in bytes: a longer one is ambiguous, and nobody uses one.
local max_method = 64

-- none stands for a rule where there is none, because nil would be an absent method.
local none = 0

-- other is the key of methods that no rule names. No method of a rule is empty.
local other = ""

local Match = {}
Match.__index = Match

-- A plain path certainly has one reading only, see readings.lua. These states read one, a step for each byte: a table
-- is the state after it, true ends the path before a query, false means that the path isn't plain.
local begin = { plain = false }
local after_letter = { plain = true }
local after_dot = { plain = false } -- some routers remove it
local after_slash = { plain = true }
do
  local QUESTION, SLASH, BACKSLASH = 0x3f, 0x2f, 0x5c
  for c = 0, 255 do
    local class = readings.classes[c]
    local plain = class == readings.letter and after_letter
      or class == readings.dot and after_dot
      or class == readings.slash and c ~= BACKSLASH and after_slash
      or false
    after_letter[c] = plain
    after_dot[c] = plain == after_letter and plain
    after_slash[c] = plain == after_letter and plain
    begin[c] = c == SLASH and after_slash
  end
  after_letter[QUESTION], after_slash[QUESTION] = true, true
end

-- without_query returns the length of a target without its query.
local function without_query(target)
  local question = find(target, "?", 1, true)
  return question and question - 1 or #target
end

-- plain_path returns the length of a target without its query, and whether that is a plain path.
local function plain_path(target)
  local size = #target
  if size > max_plain then
    size = without_query(target)
    if size > max_plain then
      return size, false
    end
  end
  local state = begin
  for i = 1, size do
    local after = state[byte(target, i)]
    if after == true then
      return i - 1, true
    elseif not after then
      return without_query(target), false
    end
    state = after
  end
  return size, state.plain
end

-- in_upper_case reports whether all upstreams read method alike, see rule_of.
local function in_upper_case(method)
  for i = 1, #method do
    local c = byte(method, i)
    if c < 0x41 or c > 0x5a then
      return false
    end
  end
  return true
end

-- permits reports whether a method is among those of a rule. Upstreams commonly answer HEAD like GET (RFC 9110, section
-- 9.3.2), so GET includes HEAD.
local function permits(rule, method)
  if not rule.methods then
    return true
  end
  for i = 1, #rule.methods do
    if rule.methods[i] == method or method == "HEAD" and rule.methods[i] == "GET" then
      return true
    end
  end
  return false
end

-- both returns the rule of a request with two readings under these rules, and whether it is ambiguous: both readings
-- must be permitted, by one rule, or by one if the other reading has none.
local function both(a, b, deny)
  if a == b or a == none and not deny then
    return b, false
  elseif b == none and not deny then
    return a, false
  end
  return none, true
end

-- merged returns the numbers of both lists in order. A rule is in one of them only.
local function merged(a, b)
  local all = {}
  for i = 1, #a do
    all[i] = a[i]
  end
  for i = 1, #b do
    all[#all + 1] = b[i]
  end
  table.sort(all)
  return all
end

-- by_method returns the first of these rules for each method.
local function by_method(rules, list, methods)
  local first = { [other] = none }
  for i = #list, 1, -1 do
    local rule = list[i]
    for method in pairs(methods) do
      if permits(rules[rule], method) then
        first[method] = rule
      end
    end
    if not rules[rule].methods then
      first[other] = rule
    end
  end
  for method in pairs(methods) do
    first[method] = first[method] or none
  end
  return first
end

local function append(lists, node, rule)
  local list = lists[node]
  if not list then
    list = {}
    lists[node] = list
  end
  list[#list + 1] = rule
end

-- new returns what decides which of these rules governs a request. A rule has a path or a prefix, as package policy
-- accepts them, and methods, nil for all. With deny_by_default a reading that no rule covers is not permitted.
function M.new(rules, deny_by_default)
  local r = readings.new(rules)
  local begins, ends, methods = {}, {}, {} -- by node: the rules that cover what begins with it, and only it
  local near = {} -- by node: some rule may cover a path that begins with it, by the common prefix of all that it covers
  for i = 1, #rules do
    local rule = rules[i]
    near[readings.node(r, readings.bare(rule.prefix or rule.path))] = true
    if rule.prefix then
      append(begins, readings.node(r, rule.prefix), i)
      if #rule.prefix > 1 and sub(rule.prefix, -1) == "/" then
        append(ends, readings.node(r, sub(rule.prefix, 1, -2)), i)
      end
    else
      local path = readings.bare(rule.path)
      append(ends, readings.node(r, path), i)
      if path ~= "/" then
        append(ends, readings.node(r, path .. "/"), i)
      end
    end
    for _, method in ipairs(rule.methods or {}) do
      methods[method] = true
      methods.HEAD = methods.HEAD or method == "GET" or nil
    end
  end
  local lists = { [0] = {} } -- by node: the rules that cover every path that begins with it
  local rest = { [0] = by_method(rules, {}, methods) } -- by node: their first for a path that leaves the trie there
  local exact = { [0] = rest[0] } -- by node: the first rule for a path that ends there
  for node = 1, r.nodes do -- parents come first
    local parent = r.parents[node]
    lists[node], rest[node], near[node] = lists[parent], rest[parent], near[parent] or near[node]
    if begins[node] then
      lists[node] = merged(lists[node], begins[node])
      rest[node] = by_method(rules, lists[node], methods)
    end
    exact[node] = rest[node]
    if ends[node] then
      exact[node] = by_method(rules, merged(lists[node], ends[node]), methods)
    end
  end
  return setmetatable({
    readings = r,
    edges = r.edges,
    rest = rest,
    exact = exact,
    near = near,
    deny = deny_by_default and true or false,
  }, Match)
end

-- rules_of returns the first rule of each method for a path, the first size bytes of a target, and whether a rule is
-- near it. A plain path has no two slashes in a row, so the trie has both spellings of its end.
local function rules_of(self, target, size)
  local edges, node = self.edges, 0
  for i = 1, size do
    local child = edges[node * 256 + byte(target, i)]
    if not child then
      return self.rest[node], self.near[node]
    end
    node = child
  end
  return self.exact[node], self.near[node]
end

-- rule_of returns the rule that governs a request, none if there is none, over all readings of its path and method.
-- Methods are case-sensitive (RFC 9110, section 9.1), and HTTP/2 brings them in any case, but some upstreams read
-- "post" as POST. So both readings must be permitted, see both.
local function rule_of(self, method, target, size, plain)
  if #method > max_method then
    return none, true
  end
  local upper = upper_method(method)
  local path = sub(target, 1, size)
  local one = plain or path == "" or path == "*" -- no router treats these as a path
  local count = one and 1 or read(self.readings, path)
  if not count then
    return none, true
  end
  local deny = self.deny
  local rule
  for i = 1, count do
    local first
    if one then
      first = rules_of(self, target, size)
    else
      local node, more = end_of(i)
      first = more and self.rest[node] or self.exact[node]
    end
    local found, ambiguous = both(first[method] or first[other], first[upper] or first[other], deny)
    if not ambiguous and rule then
      found, ambiguous = both(rule, found, deny)
    end
    if ambiguous then
      return none, true
    end
    rule = found
  end
  return rule, false
end

-- govern returns the rule of a request, nil if there is none, and whether it is ambiguous: then the request must be
-- refused. removes tells that a header of the request must be removed, so that it can't just pass: without one, a plain
-- path that no rule is near passes whatever the method.
function Match:govern(method, target, removes)
  local size, plain = plain_path(target)
  local rule, ambiguous = none, false
  if plain then
    local first, near = rules_of(self, target, size)
    if in_upper_case(method) then
      rule = first[method] or first[other]
    elseif near or removes or self.deny then
      rule, ambiguous = rule_of(self, method, target, size, plain)
    end
  else
    rule, ambiguous = rule_of(self, method, target, size, plain)
  end
  if rule == none then
    rule = nil
  end
  return rule, ambiguous
end

return M
