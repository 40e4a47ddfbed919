-- The file of a listening unix socket. nginx doesn't remove that of a process that was killed, and can't listen there
-- again while it exists.

local ffi = require "ffi"

local C = ffi.C

ffi.cdef [[
int socket(int domain, int type, int protocol);
int connect(int fd, const void *address, unsigned int length);
int close(int fd);
struct gatehouse_unix_address { unsigned short family; char path[108]; };
]]

-- Of Linux.
local af_unix, sock_stream, sock_nonblock = 1, 1, 2048
local econnrefused = 111 -- nobody listens

local M = {}

-- remove_stale removes the file of a socket, "unix:PATH", if no process listens there any more.
function M.remove_stale(socket)
  local path = socket:gsub("^unix:", "")
  local address = ffi.new "struct gatehouse_unix_address"
  if ffi.os ~= "Linux" or #path >= ffi.sizeof(address.path) then
    return
  end
  address.family = af_unix
  ffi.copy(address.path, path)
  local fd = C.socket(af_unix, sock_stream + sock_nonblock, 0)
  if fd < 0 then
    return
  end
  if C.connect(fd, address, ffi.sizeof(address)) < 0 and ffi.errno() == econnrefused then
    os.remove(path)
  end
  C.close(fd)
end

return M
