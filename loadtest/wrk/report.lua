-- Prints what wrk saw as one line of JSON, latencies in microseconds.
function done(summary, latency)
  local at = {}
  for i, q in ipairs(quantiles) do
    at[i] = string.format("%d", q == 100 and latency.max or latency:percentile(q))
  end
  local e = summary.errors
  io.write(string.format('%s{"requests":%d,"bytes":%d,"durationUS":%d,"percentiles":[%s],"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}}\n',
    marker, summary.requests, summary.bytes, summary.duration, table.concat(at, ","), e.connect, e.read, e.write, e.timeout, e.status))
end
