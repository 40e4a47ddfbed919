-- The counters of requests, which each worker adds to the dictionary on the tick. docs/monitoring.md describes them.

local ngx = ngx

local M = {}

-- print prints the counters in the text format of Prometheus.
function M.print()
  local dict = ngx.shared.gatehouse
  local names = dict:get_keys(0)
  table.sort(names)
  local lines, metric = {}, nil
  for _, name in ipairs(names) do
    local of = name:match "^gatehouse_[%a_]+"
    local value = of and dict:get(name)
    if value then
      if of ~= metric then
        metric = of
        lines[#lines + 1] = ("# TYPE %s counter\n"):format(metric)
      end
      lines[#lines + 1] = ("%s %d\n"):format(name, value)
    end
  end
  ngx.header.content_type = "text/plain; version=0.0.4"
  ngx.print(lines)
end

return M
