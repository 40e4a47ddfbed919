-- Removes entries of the log whose records are gone: tombstones that have expired.
-- Runs on Redis 7.0 and later.
--
-- KEYS  1 log  2 chain  3 a record, 4 another, and so on
-- ARGV  1 score of the first record's member in the log, 2 the member; 3 and 4 of the next, and so on
--
-- Returns how many entries it removed. An entry that has moved on is left alone.

local writes, floor = {}, redis.call('HGET', KEYS[2], 'floor')
local highest = floor and tonumber(floor) or 0
for i = 1, #ARGV, 2 do
  local score, member, record = ARGV[i], ARGV[i + 1], KEYS[3 + (i - 1) / 2]
  if redis.call('EXISTS', record) == 0 and redis.call('ZSCORE', KEYS[1], member) == score then
    writes[#writes + 1] = { 'ZREM', KEYS[1], member }
    highest = math.max(highest, tonumber(score))
  end
end
local removed = #writes
if removed == 0 then
  return { 0 }
end
-- The floor first: an entry that is gone below no floor would be a deletion that readers miss.
-- PERSIST changes nothing: it begins the writes, so that Redis takes them when it is full, as in write.lua.
table.insert(writes, 1, { 'HSET', KEYS[2], 'floor', string.format('%.0f', highest) })
table.insert(writes, 1, { 'PERSIST', KEYS[1] })
for _, write in ipairs(writes) do
  if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(write)) then
    return redis.error_reply('NOPERM nothing was trimmed: this user lacks permission for ' .. write[1] .. ' of ' .. write[2])
  end
end
for _, write in ipairs(writes) do
  redis.call(unpack(write))
end
return { removed }
