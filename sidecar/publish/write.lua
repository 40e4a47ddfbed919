-- One write of the Redis contract (package contract): all of it, or nothing.
-- Runs on Redis 7.0 and later and on miniredis.
--
-- KEYS  1 the record's hash  2 seq  3 log  4 epoch
-- ARGV  1 mode: "replace" writes a record of just these fields; "merge" keeps the other
--         fields of a record that is there and is no tombstone
--       2 version, "0" for the next one
--       3 a random epoch, taken if there is none
--       4 member
--       5 milliseconds until the record expires; "0", for never, unless it is a tombstone
--       6 channel
--       7 how to publish: "SPUBLISH" on a Redis Cluster, elsewhere "PUBLISH"
--       8 field, 9 value, and so on, without version and published
--
-- Returns {version, seq}, or an error that starts with "STALE ", "ABSENT " or "INVALID ".
-- docs/redis-contract.md has it all for writers in other languages.

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

local function invalid(text)
  return redis.error_reply('INVALID ' .. text)
end

-- A slip of a writer is refused before it costs anything: what Redis refuses after DEL
-- would be lost, and a record that readers refuse is gone from the edges. The limits of
-- keys and values are the writer's to keep.
local most = 32 -- fields; over some thousands unpack fails
if #KEYS ~= 4 or #ARGV < 9 or #ARGV % 2 == 0 or #ARGV > 7 + 2 * most then
  return invalid(#KEYS .. ' keys and ' .. #ARGV .. ' arguments: want 4 keys, 7 arguments, then 1 to '
    .. most .. ' fields with a value each')
end
local mode, member, expiry = ARGV[1], ARGV[4], version_of(ARGV[5])
if mode ~= 'replace' and mode ~= 'merge' then
  return invalid('mode ' .. mode .. ': want replace or merge')
end
if not string.find(ARGV[3], '^[0-9a-f]+$') or #ARGV[3] > 64 then
  return invalid('epoch ' .. ARGV[3] .. ': want 1 to 64 lowercase hex digits')
end
if not string.find(member, '^[oc]:.') or string.sub(KEYS[1], -#member - 2) ~= '}:' .. member then
  return invalid('member ' .. member .. ' of ' .. KEYS[1] .. ': want o:KEY or c:DEVICE, and the same at the end of the key')
end
if ARGV[7] ~= 'PUBLISH' and ARGV[7] ~= 'SPUBLISH' then
  return invalid('publishing by ' .. ARGV[7] .. ': want SPUBLISH on a Redis Cluster, elsewhere PUBLISH')
end

local record = {}
local given = { version = true, published = true }
for i = 8, #ARGV, 2 do
  if given[ARGV[i]] then
    return invalid('field ' .. ARGV[i] .. ' of ' .. member .. ': version and published are set here, every other field comes once')
  end
  given[ARGV[i]] = true
  record[#record + 1] = ARGV[i]
  record[#record + 1] = ARGV[i + 1]
end
if not expiry or (given['deleted'] ~= nil) ~= (expiry > 0) then
  return invalid('expiry ' .. ARGV[5] .. ' of ' .. member .. ': want milliseconds for a tombstone, 0 for any other record')
end

local stored = version_of(redis.call('HGET', KEYS[1], 'version')) or 0
local version = version_of(ARGV[2])
if not version then
  return invalid('version ' .. ARGV[2] .. ' of ' .. member .. ' is out of 0 to ' .. decimal(newest))
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

if mode == 'merge' then
  local old = redis.call('HGETALL', KEYS[1])
  if #old == 0 or redis.call('HEXISTS', KEYS[1], 'deleted') == 1 then
    return redis.error_reply('ABSENT ' .. member)
  end
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
if expiry > 0 then
  redis.call('PEXPIRE', KEYS[1], decimal(expiry))
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
redis.call(ARGV[7], ARGV[6], table.concat(event))
return { version, seq }
