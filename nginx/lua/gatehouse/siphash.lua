-- SipHash-2-4 of OpenSSL, which nginx is linked with. Its three calls by FFI take half the time of SipHash in LuaJIT's
-- 64-bit integers, and don't become a hundred times slower where LuaJIT interprets the code.

local ffi = require "ffi"

-- Pointers are void, because another module may have declared OpenSSL's types.
ffi.cdef [[
typedef struct {
  const char *key;
  unsigned int data_type;
  void *data;
  size_t data_size;
  size_t return_size;
} gatehouse_ossl_param;

void *OSSL_LIB_CTX_new(void);
void *EVP_MAC_fetch(void *libctx, const char *algorithm, const char *properties);
void *EVP_MAC_CTX_new(void *mac);
int EVP_MAC_CTX_set_params(void *ctx, const gatehouse_ossl_param *params);
int EVP_MAC_init(void *ctx, const unsigned char *key, size_t keylen, const gatehouse_ossl_param *params);
int EVP_MAC_update(void *ctx, const unsigned char *data, size_t datalen);
int EVP_MAC_final(void *ctx, unsigned char *out, size_t *outl, size_t outsize);
]]

-- nginx exports OpenSSL's functions, unless it was built without TLS.
local C = ffi.C
if not pcall(function()
  return C.EVP_MAC_final
end) then
  C = ffi.load("libcrypto.so.3")
end

-- A library context of its own has the default provider, whatever the system's openssl.cnf says: a FIPS provider has
-- no SipHash.
local mac = C.EVP_MAC_fetch(C.OSSL_LIB_CTX_new(), "SIPHASH", nil)
if mac == nil then
  error("gatehouse: libcrypto has no SipHash: use OpenSSL 3 with its default provider")
end

local OSSL_PARAM_UNSIGNED_INTEGER = 2

-- context returns a context for hashes of size bytes. It lives as long as the worker.
local function context(size)
  local ctx = C.EVP_MAC_CTX_new(mac)
  local value = ffi.new("uint32_t[1]", size)
  local params = ffi.new("gatehouse_ossl_param[2]")
  params[0] = { key = "size", data_type = OSSL_PARAM_UNSIGNED_INTEGER, data = value, data_size = 4 }
  if ctx == nil or C.EVP_MAC_CTX_set_params(ctx, params) ~= 1 then
    error("gatehouse: libcrypto refuses a SipHash of " .. size .. " bytes")
  end
  return ctx
end

local ctx64, ctx128 = context(8), context(16)
local out, out_length = ffi.new("uint8_t[16]"), ffi.new("size_t[1]")
local words = ffi.cast("const uint32_t *", out)

local M = {}

local function hash(ctx, key, message, length)
  if
    #key ~= 16
    or C.EVP_MAC_init(ctx, key, 16, nil) ~= 1
    or C.EVP_MAC_update(ctx, message, length) ~= 1
    or C.EVP_MAC_final(ctx, out, out_length, 16) ~= 1
  then
    error("gatehouse: SipHash failed")
  end
end

-- hash64 returns the low and the high 32 bits of SipHash-2-4 of the first length bytes of message, a string or a
-- pointer, under a key of 16 bytes.
function M.hash64(key, message, length)
  hash(ctx64, key, message, length)
  return words[0], words[1]
end

-- hash128 returns the sixteen bytes of SipHash-2-4-128, and as pointers to bytes and to u32. The next hash overwrites
-- what they point at.
function M.hash128(key, message, length)
  hash(ctx128, key, message, length)
  return out, words
end

return M
