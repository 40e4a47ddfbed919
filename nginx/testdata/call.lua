-- Calls functions of modules for the tests in Go: POST /MODULE/FUNCTION with a JSON array of arguments returns a JSON
-- array of results.

local cjson = require "cjson"

local M = {}

function M.answer()
  local module, name = ngx.var.uri:match("^/([%w_.]+)/([%w_]+)$")
  if not module then
    return ngx.say("ready")
  end
  ngx.req.read_body()
  local args = cjson.decode(ngx.req.get_body_data())
  local count = #args
  for i = 1, count do
    if args[i] == cjson.null then
      args[i] = nil
    end
  end
  local results = { xpcall(require(module)[name], debug.traceback, unpack(args, 1, count)) }
  if not results[1] then
    ngx.status = 500
    return ngx.say(results[2])
  end
  local out = {}
  for i = 2, table.maxn(results) do
    out[i - 1] = results[i] == nil and cjson.null or results[i]
  end
  ngx.print(#out == 0 and "[]" or cjson.encode(out))
end

return M
