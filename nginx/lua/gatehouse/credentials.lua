-- The credential of a request: a device id and a secret, in two headers or as HTTP Basic (RFC 7617).

local objectkey = require "gatehouse.objectkey"

local decode_base64, encode_base64 = ngx.decode_base64, ngx.encode_base64
local find, gsub, lower, sub = string.find, string.gsub, string.lower, string.sub

local M = {}

local max_secret = 72 -- bcrypt reads no more

-- Bounds Authorization: Basic, in bytes: any credential within its limits, and some spaces.
local max_basic = math.ceil((objectkey.MAX_DEVICE_ID + 1 + max_secret) / 3) * 4 + 64

local Credentials = {}
Credentials.__index = Credentials

-- new returns the reader of credentials for the configuration's part of that name.
function M.new(config)
  return setmetatable({ id = config.id_header, secret = config.secret_header, basic = config.basic }, Credentials)
end

-- parse_basic reads Authorization: Basic (RFC 7617, section 2): the id ends at the first colon. It refuses base64 that
-- another decoder could read differently.
local function parse_basic(value)
  if #value > max_basic then
    return nil
  end
  local space = find(value, " ", 1, true)
  if not space or lower(sub(value, 1, space - 1)) ~= "basic" then
    return nil
  end
  -- Go's decoder skips line ends; no header has them.
  local encoded = gsub(sub(value, space + 1), "^ +", "")
  local decoded = decode_base64(encoded)
  if not decoded or encode_base64(decoded) ~= encoded then
    return nil
  end
  local colon = find(decoded, ":", 1, true)
  if not colon then
    return nil
  end
  return sub(decoded, 1, colon - 1), sub(decoded, colon + 1)
end

-- any reports whether a request has any part of a credential.
function Credentials:any(headers)
  if self.basic then
    return headers["authorization"] ~= nil
  end
  return headers[self.id] ~= nil or headers[self.secret] ~= nil
end

-- shown returns the id and the secret of a request; nil if there is no credential, more than one, or one that can't be
-- valid. headers is as for gatehouse.engine.
function Credentials:shown(headers)
  local id, secret
  if self.basic then
    local value = headers["authorization"]
    if type(value) ~= "string" then
      return nil
    end
    id, secret = parse_basic(value)
  else
    id, secret = headers[self.id], headers[self.secret]
  end
  if
    type(id) ~= "string"
    or type(secret) ~= "string"
    or not objectkey.valid_device_id(id)
    or secret == ""
    or #secret > max_secret
    or find(secret, "\0", 1, true)
  then
    return nil
  end
  return id, secret
end

return M
