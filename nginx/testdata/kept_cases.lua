-- Keeps answers for kept_test.go.

local engine = require "gatehouse.engine"

local M = {}

local function new(query)
  return engine.new { rules = { { prefix = "/", cache = { query = query, fetch = false } } }, max_staleness_ms = 60000 }
end

-- keep keeps answers, each with a target, an entity-tag, its length, and that of the body. It returns how many there
-- are and their size as the engine counts them, and both as they are.
function M.keep(answers)
  local e = new()
  for _, a in ipairs(answers) do
    local d = { body = ("b"):rep(a.length), till = 1 }
    e:keep(d, 0, e.rules[1], a.target, nil, a.tag .. ("t"):rep(a.tag_length - #a.tag), "gzip", 2)
  end
  local count, size = 0, 0
  for target, list in pairs(e.kept) do
    for _, k in ipairs(list) do
      count = count + 1
      size = size + #k.body + #target + #k.none_match + #k.accept_encoding
    end
  end
  return e.kept_count, e.kept_size, count, size
end

-- found answers GETs of targets that all have the same object, and returns how often that was looked up.
function M.found(query, targets)
  local e, found = new(query), 0
  e:set_state(1, { in_step_ms = 1, heartbeat_ms = 1, permissions = {} })
  function e.find()
    found = found + 1
    return { ttl_ms = 0 }
  end
  function e.serve(_, d)
    d.action, d.body, d.till = "reply", "body", 10
  end
  local memory = {
    guard = function()
      return 2
    end,
  }
  for _, target in ipairs(targets) do
    local d = e:decide(1, { method = "GET", target = target, headers = {}, rule = 1 }, memory, {})
    assert(d.body == "body")
  end
  return found
end

return M
