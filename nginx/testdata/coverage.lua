-- Line coverage of the plugin for coverage_test.go.

local util = require "jit.util"

local M = {}

-- add_lines adds the lines of a function, and of those that it defines.
local function add_lines(lines, f)
  local info = util.funcinfo(f)
  for pc = 1, info.bytecodes - 1 do
    lines[util.funcinfo(f, pc).currentline] = true
  end
  for n = 1, info.gcconsts do
    local constant = util.funck(f, -n)
    if type(constant) == "proto" then
      add_lines(lines, constant)
    end
  end
end

-- lines returns the numbers of the lines of a file that run. Not counted are those that only end something: LuaJIT has
-- code there that no path reaches, like the return behind a return.
local function lines_of(path)
  local lines, out, number = {}, {}, 0
  add_lines(lines, assert(loadfile(path)))
  for text in io.lines(path) do
    number = number + 1
    local rest = text:gsub("%-%-.*", ""):gsub("%f[%w_]end%f[^%w_]", ""):gsub("%f[%w_]else%f[^%w_]", "")
    if lines[number] and rest:find "[^%s(){},]" then
      out[#out + 1] = number
    end
  end
  return out
end

-- start appends the name of each of the plugin's lines to a file when it first runs, "MODULE.lua:LINE", here and in
-- processes that fork later; PATH.all gets the lines that can. It writes at once, because tests kill nginx.
function M.start(path, root)
  local all = assert(io.open(path .. ".all", "w"))
  for name in io.popen("ls " .. root):lines() do
    for _, number in ipairs(lines_of(root .. "/" .. name)) do
      all:write(("%s:%d\n"):format(name, number))
    end
  end
  all:close()
  jit.off() -- compiled code calls no hook
  local out = assert(io.open(path, "a"))
  out:setvbuf "no"
  local seen_of = {} -- lines by source; false: not the plugin's
  debug.sethook(function(_, line)
    local source = debug.getinfo(2, "S").source
    local seen = seen_of[source]
    if seen == nil then
      local name = source:match "/lua/gatehouse/([^/]+)$"
      seen = name and { name = name } or false
      seen_of[source] = seen
    end
    if seen and not seen[line] then
      seen[line] = true
      out:write(("%s:%d\n"):format(seen.name, line))
    end
  end, "l")
end

return M
