-- The counters of requests, by rule: each worker counts by itself, and adds its counts to shared memory on the tick.
-- docs/rules.md describes them.

local M = {}

-- metrics has all metrics. The label of one that is by rule comes after the rule's. A counter's name is the first word
-- of its metric and a value of the label: cache_hit.
local metrics = {
  {
    name = "gatehouse_cache_requests_total",
    by_rule = true,
    label = "outcome",
    values = { "hit", "not_modified", "miss", "stale", "stale_served", "bypass" },
  },
  {
    name = "gatehouse_auth_requests_total",
    by_rule = true,
    label = "outcome",
    values = { "allow", "grace", "deny", "forbidden", "unavailable", "throttled" },
  },
  { name = "gatehouse_calls_total", by_rule = true, label = "call", values = { "fetch", "verify", "refresh" } },
  { name = "gatehouse_sessions_issued_total", counter = "sessions_issued" },
  { name = "gatehouse_calls_failed_total", counter = "calls_failed" },
  { name = "gatehouse_batches_total", label = "result", values = { "applied", "refused" } },
}

-- none stands for no rule.
local none = 0

-- By rule, from none on:
local counts = {} -- by counter, since the last flush
local series = {} -- by counter, as Prometheus names it; also its key in shared memory
local expected = {} -- by counter, whether its series exists before it counts

-- each calls f with the metric and the name of each counter, and the labels of its series for a rule.
local function each(rule_name, f)
  for _, metric in ipairs(metrics) do
    local rule = metric.by_rule and ('rule="%s",'):format(rule_name) or ""
    for _, value in ipairs(metric.values or {}) do
      f(metric, metric.name:match "^gatehouse_(%a+)" .. "_" .. value, ('{%s%s="%s"}'):format(rule, metric.label, value))
    end
    if metric.counter then
      f(metric, metric.counter, "")
    end
  end
end

-- add_rule makes the counters of a rule by its index, with those names that are expected.
local function add_rule(index, name, names)
  counts[index], series[index], expected[index] = {}, {}, {}
  local home = {} -- by counter, the rule whose series is printed
  each(name, function(metric, counter, labels)
    counts[index][counter] = 0
    series[index][counter] = metric.name .. labels
    home[counter] = metric.by_rule and index or none
  end)
  for _, counter in ipairs(names) do
    expected[home[counter]][counter] = true
  end
end

add_rule(none, "none", {})

-- init sets the rules, as `gatehousectl nginx render` writes them.
function M.init(config)
  add_rule(none, "none", config.counters)
  for i, rule in ipairs(config.rules) do
    add_rule(i, rule.name, rule.counters)
  end
end

-- add counts one more for a rule by its index, nil for none.
function M.add(name, rule)
  local of = counts[rule or none]
  of[name] = of[name] + 1
end

-- flush adds the counts to shared memory.
function M.flush()
  local shared = ngx.shared.gatehouse_counters
  for rule, of in pairs(counts) do
    for name, n in pairs(of) do
      if n > 0 and shared:incr(series[rule][name], n, 0) then
        of[name] = 0
      end
    end
  end
end

-- print prints the counters in the text format of Prometheus.
function M.print()
  local shared = ngx.shared.gatehouse_counters
  local lines = {} -- by metric
  for _, metric in ipairs(metrics) do
    lines[metric] = { ("# TYPE %s counter\n"):format(metric.name) }
  end
  for rule = none, #counts do
    each("", function(metric, counter)
      local key = series[rule][counter]
      local value = shared:get(key) or expected[rule][counter] and 0
      if value and (metric.by_rule or rule == none) then
        table.insert(lines[metric], ("%s %d\n"):format(key, value))
      end
    end)
  end
  ngx.header.content_type = "text/plain; version=0.0.4"
  for _, metric in ipairs(metrics) do
    ngx.print(lines[metric])
  end
end

return M
