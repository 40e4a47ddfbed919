-- The push listener: passes batches of the sidecar to the library. edge/wire/batch.go describes them and the answers.

local edge = require "gatehouse.edge"

local ngx = ngx

local M = {}

-- apply answers a request at the push listener. It is for content_by_lua in a location for all paths.
function M.apply()
  ngx.req.read_body()
  local status, content_type, body = edge.push(ngx.req.get_body_data() or "")
  ngx.status = status
  ngx.header["Content-Type"] = content_type
  ngx.header["Content-Length"] = #body
  ngx.print(body)
end

return M
