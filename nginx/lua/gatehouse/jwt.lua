-- Validates the tokens that the sidecar issues: JWTs (RFC 7519) signed with Ed25519 (RFC 8037), by OpenSSL.

local cjson = require "cjson.safe"
local ffi = require "ffi"
local base64 = require "ngx.base64"

local C = ffi.C
local decode = base64.decode_base64url
local floor, type = math.floor, type

ffi.cdef [[
typedef struct evp_pkey_st EVP_PKEY;
typedef struct evp_md_ctx_st EVP_MD_CTX;
EVP_PKEY *EVP_PKEY_new_raw_public_key(int type, void *e, const unsigned char *key, size_t keylen);
void EVP_PKEY_free(EVP_PKEY *key);
EVP_MD_CTX *EVP_MD_CTX_new(void);
void EVP_MD_CTX_free(EVP_MD_CTX *ctx);
int EVP_DigestVerifyInit(EVP_MD_CTX *ctx, void **pctx, const void *type, void *e, EVP_PKEY *pkey);
int EVP_DigestVerify(EVP_MD_CTX *ctx, const unsigned char *sig, size_t siglen, const unsigned char *tbs, size_t tbslen);
]]

local M = {}

local ed25519 = 1087 -- OpenSSL's EVP_PKEY_ED25519
local key_size = 32
local audience = "gatehouse-edge" -- of the sidecar's tokens
local signature_size = 64

-- max_token bounds a token in bytes; those of the sidecar have some 700.
local max_token = 4096

-- max_valid bounds the tokens of a worker whose signature isn't checked again.
local max_valid = 4096

-- clock_skew_s is how much the clocks of the sidecar that issued a token and of this host may differ, s.
local clock_skew_s = 10

local Validator = {}
Validator.__index = Validator

-- new returns a validator of tokens of an issuer. Without keys, all tokens are bad.
function M.new(issuer)
  return setmetatable({ issuer = issuer, keys = {}, valid = {}, count = 0 }, Validator)
end

-- set_keys sets the keys: a JSON Web Key Set (RFC 7517). It returns false, and changes nothing, if that has none.
function Validator:set_keys(text)
  local set = cjson.decode(text)
  local keys, found = {}, false
  for _, k in ipairs(type(set) == "table" and type(set.keys) == "table" and set.keys or {}) do
    local raw = type(k) == "table"
      and k.kty == "OKP"
      and k.crv == "Ed25519"
      and type(k.kid) == "string"
      and type(k.x) == "string"
      and decode(k.x)
    if raw and #raw == key_size then
      local key = C.EVP_PKEY_new_raw_public_key(ed25519, nil, raw, #raw)
      if key ~= nil then
        keys[k.kid], found = ffi.gc(key, C.EVP_PKEY_free), true
      end
    end
  end
  if found then
    self.keys, self.valid, self.count = keys, {}, 0
  end
  return found
end

-- signed reports whether the signature of text is key's.
local function signed(key, text, signature)
  local ctx = C.EVP_MD_CTX_new()
  local ok = ctx ~= nil
    and C.EVP_DigestVerifyInit(ctx, nil, nil, nil, key) == 1
    and C.EVP_DigestVerify(ctx, signature, #signature, text, #text) == 1
  C.EVP_MD_CTX_free(ctx)
  return ok
end

-- object decodes a part of a token; nil if it isn't a JSON object.
local function object(part)
  local text = decode(part)
  local value = text and cjson.decode(text)
  return type(value) == "table" and value or nil
end

-- meant reports whether the aud of a token, a name or an array of names, has the edge's.
local function meant(aud)
  if type(aud) ~= "table" then
    return aud == audience
  end
  for _, name in ipairs(aud) do
    if name == audience then
      return true
    end
  end
  return false
end

-- check returns the claims of a token with a good signature, nil for others.
function Validator:check(token)
  local head, body, mac = token:match("^([%w_-]+)%.([%w_-]+)%.([%w_-]+)$")
  local header = head and object(head)
  if not header or header.alg ~= "EdDSA" or header.crit ~= nil then
    return nil
  end
  local signature = decode(mac)
  if not signature or #signature ~= signature_size then
    return nil
  end
  local text = head .. "." .. body
  for name, key in pairs(self.keys) do
    if (header.kid == nil or header.kid == name) and signed(key, text, signature) then
      return object(body)
    end
  end
end

-- validate returns the device and the record of a token that is valid at now, unix ms; nil if it isn't.
function Validator:validate(token, now)
  local claims = self.valid[token]
  if not claims then
    claims = #token <= max_token and self:check(token)
    if not claims or claims.iss ~= self.issuer or not meant(claims.aud) then
      return nil
    end
    if type(claims.exp) ~= "number" or claims.exp ~= claims.exp then -- NaN
      return nil
    end
    if self.count >= max_valid then
      self.valid, self.count = {}, 0
    end
    self.valid[token], self.count = claims, self.count + 1
  end
  local now_s = floor(now / 1000)
  if now_s > claims.exp + clock_skew_s or type(claims.nbf) == "number" and now_s < claims.nbf - clock_skew_s then
    return nil
  end
  local id, record = claims.sub, claims.ver
  return type(id) == "string" and id or "", type(record) == "string" and record or ""
end

return M
