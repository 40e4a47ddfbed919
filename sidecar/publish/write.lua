-- One write of the Redis contract (package contract): all of it, or nothing.
-- Runs on Redis 7.0 and later and on miniredis.
--
-- KEYS  1 the record's hash  2 seq  3 log  4 epoch
-- ARGV  1 mode: "replace" writes a record of just these fields; "merge" keeps the other
--         fields of a record that is there and is no tombstone
--       2 version, "0" for the next one
--       3 a random epoch, taken if there is none
--       4 member
--       5 milliseconds until the record expires, "0" for never
--       6 channel
--       7 field, 8 value, and so on, without version and published
--
-- Returns {version, seq}, or an error that starts with "STALE ", "ABSENT " or "INVALID ".

local function decimal(n) -- tostring would turn to 1e+15 where 2^53 has its place
  return string.format('%.0f', n)
end

local function netstring(s)
  return #s .. ':' .. s .. ','
end

local newest = 9007199254740991 -- 2^53 - 1: doubles count exactly up to here

-- A stored version that cannot be read is as good as none, so that a write heals it.
local function version_of(text)
  local n = text and string.find(text, '^%d+$') and tonumber(text)
  return n and n <= newest and n
end

local mode, member = ARGV[1], ARGV[4]
local stored = version_of(redis.call('HGET', KEYS[1], 'version')) or 0
local version = version_of(ARGV[2])
if not version then
  return redis.error_reply('INVALID version ' .. ARGV[2] .. ' of ' .. member .. ' is out of 0 to ' .. decimal(newest))
end
if version == 0 and stored == 0 then
  -- The tombstone has expired, or the hash is damaged. The member's last sequence number is
  -- at least as high as any version that was counted here, so versions go on from there.
  version = tonumber(redis.call('ZSCORE', KEYS[3], member) or '0') + 1
elseif version == 0 then
  version = stored + 1
end
if version <= stored or version > newest then
  return redis.error_reply('STALE version ' .. decimal(version) .. ' of ' .. member .. ' is not newer than the stored '
    .. decimal(stored) .. ' (at most ' .. decimal(newest) .. ')')
end

local record = {}
local given = {}
for i = 7, #ARGV, 2 do
  given[ARGV[i]] = true
  record[#record + 1] = ARGV[i]
  record[#record + 1] = ARGV[i + 1]
end
if mode == 'merge' then
  local old = redis.call('HGETALL', KEYS[1])
  if #old == 0 or redis.call('HEXISTS', KEYS[1], 'deleted') == 1 then
    return redis.error_reply('ABSENT ' .. member)
  end
  given['version'], given['published'] = true, true
  for i = 1, #old, 2 do
    if not given[old[i]] then
      record[#record + 1] = old[i]
      record[#record + 1] = old[i + 1]
    end
  end
end

local now = redis.call('TIME')
record[#record + 1] = 'version'
record[#record + 1] = decimal(version)
record[#record + 1] = 'published'
record[#record + 1] = decimal(tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000))

-- What can fail comes before anything is lost: SET is refused when memory is used up (DEL
-- is not, and would let all that follows pass), INCR and ZADD on a key of another type.
redis.call('SET', KEYS[4], ARGV[3], 'NX')
local seq = redis.call('INCR', KEYS[2])
redis.call('ZADD', KEYS[3], decimal(seq), member)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(record))
if ARGV[5] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end

local event = {
  netstring('1'),
  netstring(redis.call('GET', KEYS[4])),
  netstring(decimal(seq)),
  netstring(member),
}
for i = 1, #record do
  event[#event + 1] = netstring(record[i])
end
redis.call('PUBLISH', ARGV[6], table.concat(event))
return { version, seq }
