-- The library with the policy, in Go: nginx/host. A worker loads it after the fork, which Go's threads don't survive.

local ffi = require "ffi"

local C = ffi.C

-- As in shim.h and exports.go.
ffi.cdef [[
typedef struct {
  int32_t status, more;
  uint32_t id;
  int32_t wait;
  double number;
  const char *body;
  size_t body_length;
  double key;
  int32_t forget;
  const char *name, *head;
  size_t name_length, head_length;
} gh_out;
const char *gh_start(const char *rules, size_t length, const char *issuer, const char *memory,
                     double bytes, double objects, double verdicts);
int gh_access(void *r, double unread, gh_out *out);
int gh_resume(void *r, uint32_t id, double unread, gh_out *out);
void gh_reply(void *r);
void gh_push(void *r, const char *body, size_t length, gh_out *out);
void gh_tick(void);
int gh_next(gh_out *out);
void gh_answer(uint32_t token, const char *body, size_t length);
const char *gnu_get_libc_version(void);
]]

local M = {
  -- What to do with a request.
  pass = 0,
  reply = 1,
  discard = 2,
  wait = 3,
  -- What else to do.
  wake = 1,
  call = 2,
  count = 3,
}

-- out returns room for a function's result.
function M.out()
  return ffi.new "gh_out"
end

-- check returns why a library can't be loaded, as far as that shows without loading it; nil if nothing does.
function M.check(path)
  if ffi.os ~= "Linux" or not pcall(function()
    return C.gnu_get_libc_version
  end) then
    return "this nginx doesn't run with glibc, and musl (Alpine) can't load a library of Go: use an image with glibc"
  end
  local file, err = io.open(path, "rb")
  if not file then
    return err .. ": gatehousectl nginx install writes it"
  end
  file:close()
end

-- load loads the library and starts it with rules and what else it needs; it returns nil and the reason if that fails.
function M.load(path, rules, ...)
  local ok, library = pcall(ffi.load, path)
  if not ok then
    return nil, library
  end
  local problem = library.gh_start(rules, #rules, ...)
  if problem ~= nil then
    return nil, ffi.string(problem)
  end
  return library
end

return M
