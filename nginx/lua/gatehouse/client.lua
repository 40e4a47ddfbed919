-- One HTTP call to the sidecar, over a connection that later calls use again. The sidecar sends each answer with its
-- length, so answers in chunks aren't read.

local ngx, tcp = ngx, ngx.socket.tcp
local find, gmatch, lower, match, sub = string.find, string.gmatch, string.lower, string.match, string.sub
local min, tonumber = math.min, tonumber

local M = {}

-- max_answer bounds the body of an answer, in bytes: an object with four encodings of 1 MiB each, and their record.
local max_answer = 5 * 1024 * 1024

-- max_head bounds what is before the body, in bytes.
local max_head = 8192

-- connect_timeout_ms bounds the time until a connection is there.
local connect_timeout_ms = 250

-- Shorter than the sidecar's own idle timeout, so that no call uses a connection that is being closed.
local idle_timeout_ms = 30000

-- max_idle bounds the idle connections that a worker keeps.
local max_idle = 64

-- read returns what has arrived of a call's answer, at most that many bytes, and waits for it until the deadline. A
-- socket's timeout begins again with each byte, so it alone would not end a call whose answer drips.
local function read(call, most)
  local left = call.deadline_ms - ngx.now() * 1000
  if left < 1 then
    return nil, "timeout"
  end
  call.sock:settimeout(min(left, call.timeout_ms)) -- more is left if the clock was set back
  return call.sock:receiveany(most)
end

-- receive_head returns the head of an answer and what has arrived behind it.
local function receive_head(call)
  local text = ""
  while #text < max_head do
    local more, err = read(call, max_head - #text)
    if not more then
      return nil, err
    end
    text = text .. more
    local _, last = find(text, "\r\n\r\n", 1, true)
    if last then
      return sub(text, 1, last), sub(text, last + 1)
    end
  end
  return nil, ("head of more than %d bytes"):format(max_head)
end

-- receive_body returns a body of which the first bytes have arrived.
local function receive_body(call, first, length)
  local parts, size = { first }, #first
  while size < length do
    local more, err = read(call, length - size)
    if not more then
      return nil, err
    end
    parts[#parts + 1], size = more, size + #more
  end
  if size > length then
    return nil, "answer longer than its Content-Length"
  end
  return table.concat(parts)
end

-- receive reads an answer, and returns its body, or nil and the reason unless its status is 200; and whether the
-- sidecar closes the connection.
local function receive(call)
  local head, first = receive_head(call)
  if not head then
    return nil, first
  end
  local length, closes
  for name, value in gmatch(head, "\r\n([^:\r\n]+):[ \t]*([^\r\n]*)") do
    name = lower(name)
    if name == "content-length" then
      length = tonumber(match(value, "^(%d+)%s*$"))
    elseif name == "connection" then
      closes = find(lower(value), "close", 1, true) ~= nil
    end
  end
  if not length or length > max_answer then
    return nil, "answer of unknown or excessive length"
  end
  local body, err = receive_body(call, first, length)
  local status = match(head, "^HTTP/1%.1 (%d%d%d)")
  if body and status ~= "200" then
    return nil, "status " .. (status or "unknown")
  end
  return body, err, closes
end

-- request makes a call, and returns the body of the answer, or nil and the reason. timeout_ms bounds the whole call;
-- headers are further lines of its head, each with its end.
function M.request(socket, timeout_ms, method, path, body, headers)
  local sock = tcp()
  local call = { sock = sock, timeout_ms = timeout_ms, deadline_ms = ngx.now() * 1000 + timeout_ms }
  sock:settimeouts(connect_timeout_ms, timeout_ms, timeout_ms)
  local ok, err = sock:connect(socket)
  if not ok then
    return nil, err
  end
  ok, err = sock:send {
    method,
    " ",
    path,
    " HTTP/1.1\r\nHost: gatehouse\r\nContent-Type: application/octet-stream\r\nContent-Length: ",
    #body,
    "\r\n",
    headers or "",
    "\r\n",
    body,
  }
  local answer, closes
  if ok then
    answer, err, closes = receive(call)
  end
  if answer and not closes then
    sock:setkeepalive(idle_timeout_ms, max_idle)
  else
    sock:close()
  end
  return answer, err
end

return M
