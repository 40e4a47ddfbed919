-- The counters of requests: each worker counts by itself, and adds its counts to shared memory on the tick.

local M = {}

-- names has all counters, as in wasm-filter/README.md.
M.names = {
  "cache_hit",
  "cache_not_modified",
  "cache_miss",
  "cache_stale",
  "cache_stale_served",
  "cache_bypass",
  "cache_fetch",
  "auth_allow",
  "auth_grace",
  "auth_deny",
  "auth_forbidden",
  "auth_unavailable",
  "auth_verify",
  "auth_refresh",
  "session_issued",
  "call_failed",
  "batch_applied",
  "batch_refused",
}

local counts = {}
for _, name in ipairs(M.names) do
  counts[name] = 0
end

-- add counts one more.
function M.add(name)
  counts[name] = counts[name] + 1
end

-- flush adds the counts to shared memory.
function M.flush()
  local shared = ngx.shared.gatehouse_counters
  for name, n in pairs(counts) do
    if n > 0 and shared:incr(name, n, 0) then
      counts[name] = 0
    end
  end
end

-- print prints the counters in the text format of Prometheus, under the names that Envoy gives them.
function M.print()
  local shared = ngx.shared.gatehouse_counters
  ngx.header.content_type = "text/plain; version=0.0.4"
  for _, name in ipairs(M.names) do
    ngx.print("# TYPE gatehouse_", name, " counter\ngatehouse_", name, " ", shared:get(name) or 0, "\n")
  end
end

return M
