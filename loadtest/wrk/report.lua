-- Prints what wrk saw as one line of JSON, latencies in microseconds.
function done(summary, latency)
  local at = {}
  for i, p in ipairs(percents) do
    at[i] = string.format("%d", p == 100 and latency.max or latency:percentile(p))
  end
  local e = summary.errors
  io.write(string.format('%s{"requests":%d,"durationUS":%d,"percentiles":[%s],"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}}\n',
    marker, summary.requests, summary.duration, table.concat(at, ","), e.connect, e.read, e.write, e.timeout, e.status))
end
