-- One write of the Redis contract (package contract): all of it, or nothing.
-- Runs on Redis 7.0 and later and on miniredis.
--
-- KEYS  1 the record's hash  2 seq  3 log  4 epoch  5 chain  6 audit, if a device's write is to be audited
-- ARGV  1 mode: "replace" writes a record of these fields
--         "merge" adds these fields to a record, or makes the record a tombstone; a tombstone counts as no record
--         "add" writes a record if there is neither a record nor a tombstone, or a tombstone if there is no record
--         "purge" writes a purge: "hard" or "soft", of which the value becomes seq
--       2 version; "0" for the next one; "=V" for the next one if the stored version is V, "=0" if
--         there is none; "~V" for V itself, if an object has it: only for its tombstone
--       3 random hex digits, fresh for every write: the epoch, if there is none. With 32 digits or more a repetition of
--         an applied write, among the last 65,536 of the shard, is only answered, as the first time. Of 64 the last 32
--         are a digest of the request, of the writer's choice: another one with the same first 32 is refused
--       4 member
--       5 milliseconds until the record expires; "0", for never, unless it is a tombstone
--       6 channel; scripts can't ask for the number of the database that its name may have
--       7 how to publish: "SPUBLISH" on a Redis Cluster, elsewhere "PUBLISH"
--       8 traceparent (W3C Trace Context), "" for none
--       9 only with KEYS[6]: the author, "" if unknown; what entries don't allow in it is replaced or cut
--       then field, value, field, value, and so on, without version and published, and without seq of an object
--
-- Returns {version, seq}; after "add" seq is 0 if the record has just these fields already, and
-- nothing was written. Or an error that starts with "STALE ", "ABSENT ", "EXISTS ", "INVALID ",
-- "LIMIT " or "REUSED ".
-- docs/redis-contract.md has it all for writers in other languages.

local function decimal(n) -- tostring would turn to 1e+15 where 2^53 has its place
  return string.format('%.0f', n)
end

local function netstring(s)
  return #s .. ':' .. s .. ','
end

local newest = 9007199254740991 -- 2^53 - 1: doubles count exactly up to here
local own = 4503599627370496 -- 2^52: the highest version that a writer gives; the other half is for what is counted
local speaks = 1 -- the version of the contract that this script has
local ring = 65536 -- links, and requests, that the chain keeps
local audited = 100000 -- newest entries that the audit keeps, some 9 MB

-- A stored number that cannot be read is as good as none, so that a write heals it.
local function number_of(text)
  local n = text and string.find(text, '^%d+$') and tonumber(text)
  return n and n <= newest and n
end

local function invalid(text)
  return redis.error_reply('INVALID ' .. text)
end

-- A slip of a writer is refused before it costs anything: a record that readers refuse is
-- gone from the edges.
local most = 32 -- fields; over some thousands unpack fails
local before_fields = #KEYS == 6 and 9 or 8 -- arguments
if #KEYS < 5 or #KEYS > 6 or #ARGV < before_fields + 2 or (#ARGV - before_fields) % 2 == 1
  or #ARGV > before_fields + 2 * most then
  return invalid(#KEYS .. ' keys and ' .. #ARGV .. ' arguments: want 5 keys, 8 arguments, then 1 to '
    .. most .. ' fields with a value each; to audit the write of a device, 6 keys and 9 arguments before them')
end
local mode, member, expiry, trace = ARGV[1], ARGV[4], number_of(ARGV[5]), ARGV[8]
if mode ~= 'replace' and mode ~= 'merge' and mode ~= 'add' and mode ~= 'purge' then
  return invalid('mode ' .. mode .. ': want replace, merge, add or purge')
end
if not string.find(ARGV[3], '^[0-9a-f]+$') or #ARGV[3] > 64 then
  return invalid('epoch ' .. ARGV[3] .. ': want 1 to 64 lowercase hex digits')
end
local prefix = string.sub(KEYS[1], 1, -#member - 1)
if not string.find(member, '^[ocp]:.') or prefix .. member ~= KEYS[1] or string.sub(prefix, -2) ~= '}:' then
  return invalid('member ' .. member .. ' of ' .. KEYS[1]
    .. ': want o:KEY, c:DEVICE or p:PURGE, and the same at the end of the key')
end
for i, name in ipairs({ 'seq', 'log', 'epoch', 'chain', 'audit' }) do
  if KEYS[i + 1] and KEYS[i + 1] ~= prefix .. name then
    return invalid('key ' .. KEYS[i + 1] .. ': want ' .. prefix .. name)
  end
end
local channel = prefix .. 'events'
if ARGV[6] ~= channel and (string.sub(ARGV[6], 1, #channel) ~= channel
  or not string.find(ARGV[6], '^:[1-9]%d*$', #channel + 1)) then
  return invalid('channel ' .. ARGV[6] .. ': want ' .. channel .. ', and in a database D other than 0 ' .. channel .. ':D')
end
if ARGV[7] ~= 'PUBLISH' and ARGV[7] ~= 'SPUBLISH' then
  return invalid('publishing by ' .. ARGV[7] .. ': want SPUBLISH on a Redis Cluster, elsewhere PUBLISH')
end
local hex = '[0-9a-f]'
local function traceparent() -- its pattern; most writes have none
  return '^00%-' .. string.rep(hex, 32) .. '%-' .. string.rep(hex, 16) .. '%-' .. string.rep(hex, 2) .. '$'
end
if trace ~= '' and not string.find(trace, traceparent()) then
  return invalid('traceparent ' .. trace .. ': want none, or 00-, 32 hex digits, -, 16, -, 2')
end

-- What follows are the limits and forms of docs/redis-contract.md. A function of a value
-- returns what readers allow instead, or nil if they accept it.
local function limit(what, size, allowed)
  return 'LIMIT ' .. what .. ': ' .. size .. ', at most ' .. allowed .. ' are allowed'
end

local function number(text)
  local n = number_of(text)
  return not (n and n > 0 and text == decimal(n)) and 'a decimal number from 1 to ' .. decimal(newest)
end

local function flag(text)
  return text ~= '1' and '1, or no such field'
end

local function disabled(text)
  return text ~= '1' and text ~= 'revoked' and '1 or revoked, or no such field'
end

local function coding(text)
  return text == '' and 'bytes: no content coding is empty'
end

local function etag(text)
  return not string.find(text, '^"[!#-~]*"$') and 'a strong entity-tag, with its quotes'
end

local function content_type(text)
  local fits = string.find(text, '^[!-~][ -~]*$') and string.sub(text, -1) ~= ' '
  return not fits and 'printable ASCII without a blank at an end'
end

local statuses = { ['301'] = true, ['302'] = true, ['307'] = true, ['308'] = true, ['404'] = true, ['410'] = true }

local function status(text)
  return not statuses[text] and '301, 302, 307, 308, 404 or 410; 200 has no such field'
end

local refused_headers = ' connection keep-alive te trailer transfer-encoding upgrade content-length content-type '
  .. 'content-encoding content-range accept-ranges etag e-tag age date vary cache-status set-cookie set-cookie2 '

local function refused_header(name)
  for _, prefix in ipairs({ 'proxy-', 'x-envoy-', 'x-accel-', 'x-gatehouse-', 'gatehouse-' }) do
    if string.sub(name, 1, #prefix) == prefix then
      return true
    end
  end
  return string.find(refused_headers, ' ' .. name .. ' ', 1, true)
end

local imf_fixdate = '^[A-Z][a-z][a-z], %d%d [A-Z][a-z][a-z] %d%d%d%d %d%d:%d%d:%d%d GMT$'

local function headers(text)
  local seen, count = {}, 0
  for line in string.gmatch(text .. '\n', '(.-)\n') do
    local name, value = string.match(line, '^([a-z0-9-]+): (.*)$')
    count = count + 1
    if not name or #name > 64 then
      return 'lines "name: value", each name 1 to 64 of a-z, 0-9 and -'
    elseif content_type(value) then
      return 'values of printable ASCII without a blank at an end; see ' .. name
    elseif refused_header(name) then
      return 'no ' .. name .. ': Gatehouse or the proxy sets it, or it is for one client'
    elseif seen[name] and name ~= 'link' then
      return 'each name once, except link; see ' .. name
    elseif name == 'last-modified' and not string.find(value, imf_fixdate) then
      return 'last-modified as in Sun, 06 Nov 1994 08:49:37 GMT'
    end
    seen[name] = true
  end
  return count > 32 and '32 lines at most'
end

local function within(text, least, most)
  return string.find(text, '^[1-9]%d*$') and #text < 8 and tonumber(text) >= least and tonumber(text) <= most
end

local function sized(text, least, most) -- as base64 without padding can be
  return #text >= least and #text <= most and #text % 4 ~= 1
end

local bytes64 = '([./+A-Za-z0-9]+)'

local function hash_fits(hash)
  local cost = #hash == 60 and string.match(hash, '^%$2[aby]%$(%d%d)%$[./A-Za-z0-9]+$')
  if cost then
    return tonumber(cost) >= 4 and tonumber(cost) <= 15
  end
  local scheme, parameters, salt, key = string.match(hash, '^%$([a-z0-9-]+)%$(.+)%$' .. bytes64 .. '%$' .. bytes64 .. '$')
  if not scheme or not sized(salt, 8, 63) or not sized(key, 20, 87) then
    return false
  elseif scheme == 'gh1' then
    return string.find(parameters, '^[0-9a-f]+$') and #parameters == 16 and #salt == 22 and #key == 43
  elseif scheme == 'pbkdf2-sha256' or scheme == 'pbkdf2-sha512' then
    parameters = string.gsub(string.gsub(parameters, '^i=', ''), ',l=[1-9]%d$', '')
    return within(parameters, 1000, 9999999)
  elseif scheme == 'argon2id' then
    local memory, passes, lanes = string.match(parameters, '^v=19%$m=(%d+),t=(%d+),p=(%d+)$')
    return memory and within(memory, 1, 131072) and within(passes, 1, 16) and within(lanes, 1, 16)
  end
  local log, block, lanes = string.match(parameters, '^ln=(%d+),r=(%d+),p=(%d+)$')
  return scheme == 'scrypt' and log and within(log, 1, 17) and within(block, 1, 8) and within(lanes, 1, 16)
end

local function hashes(text)
  local _, more = string.gsub(text, '\n', '')
  if more > 3 then
    return '4 hashes at most'
  end
  for hash in string.gmatch(text .. '\n', '(.-)\n') do
    if not hash_fits(hash) then
      return 'hashes of bcrypt (cost 04 to 15), argon2id, scrypt, pbkdf2-sha256, pbkdf2-sha512 or gh1, one a line'
    end
  end
end

local function permissions(text)
  local names, count = {}, 0
  for name in string.gmatch(text == '' and '' or text .. ',', '(.-),') do
    if #name > 64 or not string.find(name, '^[A-Za-z0-9._:%-]+$') then
      return 'names of 1 to 64 letters, digits and . _ : -, joined by commas'
    end
    count = count + (names[name] and 0 or 1)
    names[name] = true
  end
  return count > 64 and '64 names at most'
end

local function labels(text)
  local seen, count = {}, 0
  for pair in string.gmatch(text .. ',', '(.-),') do
    local name, value = string.match(pair, '^([a-z0-9._-]+)=([A-Za-z0-9._:-]*)$')
    if not name or #name > 32 or #value > 64 or seen[name] then
      return 'name=value joined by commas, each name once: 1 to 32 of a-z, 0-9 and . _ -, and at most 64 letters, '
        .. 'digits and . _ : -'
    end
    seen[name], count = true, count + 1
  end
  return count > 16 and '16 labels at most'
end

-- precedes reports whether a is before b in byte order. The operator < follows the server's locale.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local tag_form = '^[A-Za-z0-9._~:/?#%[%]@!$&\'()+;=%%-]+$'

local function tags(text)
  local last, count = '', 0
  for tag in string.gmatch(text .. ',', '(.-),') do
    if #tag > 64 or not string.find(tag, tag_form) or not precedes(last, tag) then
      return '1 to 16 tags in byte order, each once, joined by commas: 1 to 64 of a URI\'s characters '
        .. 'other than , and *'
    end
    last, count = tag, count + 1
  end
  return count > 16 and '16 tags at most'
end

local mebibyte = 1048576
local codings = { mebibyte, coding }
local forms = { -- by kind and field: bytes at most, the function, and the contract's version that has it, if not the first
  o = {
    etag = { 128, etag }, ['content-type'] = { 255, content_type }, ttl = { 16, number }, body = { mebibyte },
    ['body.gzip'] = codings, ['body.br'] = codings, ['body.zstd'] = codings, deleted = { 1, flag },
    status = { 3, status }, headers = { 4096, headers },
    tags = { 16 * 65 - 1, tags },
  },
  p = { hard = { 16, number }, soft = { 16, number }, deleted = { 1, flag } },
  c = {
    hash = { 4 * 193 - 1, hashes }, permissions = { 64 * 65, permissions }, disabled = { 7, disabled },
    ['not-after'] = { 16, number }, ['old-until'] = { 16, number }, labels = { 16 * 98, labels }, deleted = { 1, flag },
  },
}
local kind, id = string.sub(member, 1, 1), string.sub(member, 3)
local short = #member <= 80 and member or string.sub(member, 1, 80) .. '...'

-- refusal is why readers refuse a field of this member, or nil.
local function refusal(field, value)
  local form = forms[kind][field]
  if not form then
    return 'INVALID field ' .. string.sub(field, 1, 80) .. ' of ' .. short .. ': there is no such field'
  end
  if #value > form[1] then
    return limit(field .. ' of ' .. short, #value .. ' bytes', form[1])
  end
  local want = form[2] and form[2](value)
  return want and 'INVALID ' .. field .. ' of ' .. short .. ': want ' .. want or nil
end

-- canonical reports whether a key, without its device, has its escapes in upper case, and a sorted
-- query without empty pairs.
local function canonical(target)
  if string.find(target, '%%[a-f]%x') or string.find(target, '%%%x[a-f]') then
    return false
  end
  local query, last = string.match(target, '%?(.*)'), ''
  for pair in string.gmatch(query and query .. '&' or '', '(.-)&') do
    local name = string.match(pair, '^[^=]*')
    if pair == '' or precedes(name, last) then
      return false
    end
    last = name
  end
  return true
end

-- looked_up reports whether a key, without its device, has a path that Envoy doesn't normalise to another one, so that
-- an edge can look it up.
local function looked_up(target)
  local path = string.match(target, '^[^?#]*')
  path = string.match(path, '^//[^/]*(/.*)') or path
  for escape in string.gmatch(path, '%%(%x%x)') do
    if string.find(string.char(tonumber(escape, 16)), '^[A-Za-z0-9._~/\\-]') then
      return false
    end
  end
  return not string.find(path, '//', 1, true) and not string.find(path, '\\', 1, true)
    and not string.find(path .. '/', '/%.%.?/')
end

-- scoped reports whether a key, without its device, names a virtual host, a host or both as it must, if it begins with
-- two slashes.
local function scoped(target)
  if string.sub(target, 1, 2) ~= '//' then
    return true
  end
  local space = string.match(target, '^//([^/]*)/') or ''
  local name, host = string.match(space, '^([^:]*):(.*)')
  name = name or space
  if #name > 64 or not string.find(name, '^[a-z0-9_-]*$') then
    return false
  end
  return not host and name ~= ''
    or host and #host <= 253 and (string.find(host, '^[a-z0-9._-]+$') or string.find(host, '^%[[0-9a-f:.]+%]$'))
end

-- purge_refusal is id_refusal for a purge: a prefix, or # and a tag, of keys without a virtual host or of one.
local function purge_refusal()
  local name, rest = string.match(id, '^//([a-z0-9_-]+)([/#].*)$')
  rest = rest or id
  local tag = string.match(rest, '^#(.*)$')
  if #id > 2048 then
    return limit('purge ' .. short, #id .. ' bytes', 2048)
  elseif name and #name > 64 or tag and (#tag > 64 or not string.find(tag, tag_form))
    or not tag and not string.find(rest, '^/$') and not string.find(rest, '^/[!"$-.0->@-~][!"$->@-~]*/$') then
    return 'INVALID purge ' .. short .. ': want [//virtual-host]/prefix/ or [//virtual-host]#tag'
  elseif not tag and not canonical(rest) then
    return 'INVALID purge ' .. short .. ' is not canonical: want hex digits of escapes in upper case'
  end
end

-- spoken reports whether a key's language has the form of a language tag in lower case.
local function spoken(language)
  for subtag in string.gmatch(language .. '-', '(.-)%-') do
    if #subtag > 8 or not string.find(subtag, '^[a-z0-9]+$') then
      return false
    end
  end
  return string.find(language .. '-', '^[a-z][a-z]+%-')
end

local function id_refusal()
  if kind == 'p' then
    return purge_refusal()
  end
  local device, visible = id, '^[!#-+.0->@-~%-]+$'
  if kind == 'o' then
    local _, pairs_less_one = string.gsub(string.match(id, '%?(.*)') or '', '&', '')
    if #id > 2048 then
      return limit('key ' .. short, #id .. ' bytes', 2048)
    elseif pairs_less_one >= 64 then
      return limit('query of ' .. short, pairs_less_one + 1 .. ' parameters', 64)
    elseif not string.find(id, '^[!-~]+$') or not string.find(id, '^[/@]') then
      return 'INVALID key ' .. short .. ': want visible ASCII that begins with / or @'
    end
    local target, hash, language = string.match(id, '(/[^#]*)(#?)(.*)')
    if hash == '#' and not spoken(language) then
      return 'INVALID language of key ' .. short .. ': want a language tag after #, in lower case'
    elseif not scoped(target or '') then
      return 'INVALID key ' .. short .. ': want [@device][//[virtual-host][:host]]/path, the host in lower case and '
        .. 'without a port'
    elseif not canonical(target or '') then
      return 'INVALID key ' .. short .. ' is not canonical: want hex digits of escapes in upper case, and the '
        .. 'pairs of a query sorted by name in byte order, none empty'
    end
    device = string.match(id, '^@([^/]*)/') or string.sub(id, 1, 1) == '/' and 'none' or ''
  end
  if #device > 128 then
    return limit('device id of ' .. short, #device .. ' bytes', 128)
  elseif not string.find(device, visible) then
    return 'INVALID device id of ' .. short .. ': want visible ASCII without / ? , and "'
  end
end

if KEYS[6] and kind ~= 'c' then
  return invalid('key ' .. KEYS[6] .. ': only the writes of devices are audited')
end
local refused = id_refusal()
local record, request = {}, { mode, ARGV[2], member, ARGV[5] }
local given = { version = true, published = true, seq = kind == 'o' or nil }
for i = before_fields + 1, #ARGV, 2 do
  if given[ARGV[i]] then
    return invalid('field ' .. ARGV[i] .. ' of ' .. member .. ': version and published, and seq of an object, are '
      .. 'set here, every other field comes once')
  end
  given[ARGV[i]] = ARGV[i + 1]
  refused = refused or refusal(ARGV[i], ARGV[i + 1])
  record[#record + 1] = ARGV[i]
  record[#record + 1] = ARGV[i + 1]
  request[#request + 1] = ARGV[i]
  request[#request + 1] = #ARGV[i + 1] > 256 and #ARGV[i + 1] or ARGV[i + 1]
end
if kind == 'c' and string.sub(id, 1, 1) == '*' and mode ~= 'merge' and not given['deleted'] then -- merge may revoke one
  refused = refused or 'INVALID device id of ' .. short .. ': ids that begin with * are for invalidations'
end
if kind == 'o' and not given['deleted'] and not looked_up(string.match(id, '/.*') or '') then
  refused = refused or 'INVALID key ' .. short .. ': no edge looks it up, want a path without //, \\, segments . and .., '
    .. 'and escapes of letters, digits and - . _ ~ / \\'
end
if refused then
  return redis.error_reply(refused)
end
if given['deleted'] and #record > 2 then
  return invalid('deleted of ' .. short .. ': a tombstone has no other field')
end
if given['deleted'] then
  given['seq'] = nil
end
if (mode == 'purge') ~= (kind == 'p' and not given['deleted'])
  or mode == 'purge' and (#record > 2 or record[2] ~= '1' or record[1] == 'deleted') then
  return invalid('fields of ' .. short .. ' in mode ' .. mode .. ': want one, hard or soft, 1 in a purge, and no purge '
    .. 'of another member')
end
if not expiry or (given['deleted'] ~= nil) ~= (expiry > 0) then
  return invalid('expiry ' .. ARGV[5] .. ' of ' .. member .. ': want milliseconds for a tombstone, 0 for any other record')
end

-- permit ends the script where this user may not run a command; Redis 7 can tell.
local function permit(command, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(command, ...) then
    error({ err = 'NOPERM nothing was written: this user lacks permission for ' .. command .. ' ' .. (... or '') })
  end
end

local function read(...)
  permit(...)
  return redis.call(...)
end

-- Reading finds keys of another type, too.
local stored = number_of(read('HGET', KEYS[1], 'version')) or 0
local before = read('GET', KEYS[2])
local score = read('ZSCORE', KEYS[3], member)
local epoch = read('GET', KEYS[4]) or ARGV[3]
local head = read('HGET', KEYS[5], 'head')
local needs = number_of(read('HGET', KEYS[5], 'needs')) or 1
if needs > speaks then
  return redis.error_reply('CONTRACT ' .. KEYS[5] .. ' needs version ' .. decimal(needs) .. ' of the contract, this writer '
    .. 'has ' .. decimal(speaks) .. ': update the writer')
end
local seq, linked = number_of(before), head and number_of(string.sub(head, 1, -42))
if not seq or before ~= decimal(seq) or seq >= own and seq ~= linked then
  seq = linked -- seq is lost, or a direct command left such a number; the chain has that of the last write
end
-- Only a member without an entry, or with a later one, can show that seq or the log is lost: somebody deleted the key,
-- or Redis evicted it. Without ZRANGE, which earlier permissions lack, nobody knows.
local logged = score
if not score or not seq or tonumber(score) > seq then
  local highest = { 'ZRANGE', KEYS[3], '-1', '-1', 'WITHSCORES' }
  local permitted = not redis.acl_check_cmd or redis.acl_check_cmd(unpack(highest))
  local top = permitted and tonumber(redis.call(unpack(highest))[2])
  logged = top or not permitted
  if top and top <= own then
    seq = math.max(top, seq or 0)
  end
end
if before and not seq or seq == newest then
  return redis.error_reply('ERR ' .. KEYS[2] .. ' is ' .. (before or 'lost') .. ', want a number below '
    .. decimal(newest) .. ': set it to the highest score in ' .. KEYS[3])
end
seq = seq or 0
local counted = (before or '0') == decimal(seq) -- otherwise INCR would count from another number
local lost = not logged and seq > 0 and number_of(read('HGET', KEYS[5], 'floor')) ~= seq -- otherwise all was trimmed
seq = seq + 1

-- A client library repeats a request if its reply was lost. Meanwhile others may have written, so a second run would
-- undo their writes. The chain remembers requests, in a field for each 4 digits, which are the last of the 32. An entry
-- has 60 bytes: 20 digits, 8 of the request's digest, then version and sequence number, 16 digits each.
local remembered, requests, entry
if #ARGV[3] >= 32 then
  remembered = 'r' .. string.sub(ARGV[3], 29, 32)
  requests = redis.call('HGET', KEYS[5], remembered) or '' -- permitted, as head was
  entry = string.sub(ARGV[3], 1, 20)
    .. string.sub(#ARGV[3] == 64 and ARGV[3] or redis.sha1hex(table.concat(request, '\0')), -8)
  local at = string.find(requests, string.sub(entry, 1, 20), 1, true)
  local seq_then = at and tonumber(string.sub(requests, at + 44, at + 59))
  if at and seq_then < seq then -- otherwise seq was lost since
    if string.sub(requests, at, at + 27) == entry then
      return { tonumber(string.sub(requests, at + 28, at + 43)), seq_then }
    elseif #ARGV[3] == 64 then
      return redis.error_reply('REUSED request ' .. string.sub(ARGV[3], 1, 32) .. ' was another one, sequence number '
        .. decimal(seq_then))
    end
    requests = string.sub(requests, 1, at - 1) .. string.sub(requests, at + 60)
  end
end

-- The record before, if it matters.
local old, was = (mode ~= 'replace' or KEYS[6]) and read('HGETALL', KEYS[1]) or {}, {}
for i = 1, #old, 2 do
  was[old[i]] = old[i + 1]
end
if mode == 'add' and not (given['deleted'] and was.deleted) then
  local same, own = stored > 0, #record -- own: of the writer
  for i = 1, #old, 2 do
    local want = given[old[i]]
    same = same and (want == true or want == old[i + 1])
    own = own - (want == true and 0 or 2)
  end
  if same and own == 0 then
    return { stored, 0 }
  elseif #old > 0 then
    local deleted = was.deleted and ', deleted' or ''
    return redis.error_reply('EXISTS ' .. member .. ' has another record, version ' .. decimal(stored) .. deleted)
  end
end

local condition, expected = string.match(ARGV[2], '^([=~])(.*)')
local version = number_of(expected or ARGV[2])
if not version then
  return invalid('version ' .. ARGV[2] .. ' of ' .. member .. ' is out of 0 to ' .. decimal(newest))
elseif version > own and version ~= stored + 1 and not condition and not (kind == 'c' and given['deleted']) then
  return invalid('version ' .. decimal(version) .. ' of ' .. member .. ': a writer may give ' .. decimal(own)
    .. ' at most, beyond it 0, for the next one')
end
local kept = condition == '~'
if kept and (kind ~= 'o' or not given['deleted']) then -- of a device, a writer that read it would bring it back
  return invalid('version ' .. ARGV[2] .. ' of ' .. member .. ": only an object's tombstone keeps the stored one")
end
if kept and read('HGET', KEYS[1], 'deleted') then
  return redis.error_reply('STALE version ' .. decimal(version) .. ' of ' .. member .. ' is a tombstone already')
end
if expected and version ~= stored then
  return redis.error_reply('STALE version ' .. decimal(version) .. ' of ' .. member .. ' is not the stored '
    .. decimal(stored))
end
if condition == '=' then
  version = 0
end
local last = version == 0 and stored == newest -- no version follows: the writes after it keep it
if last then
  version = newest
elseif version == 0 and stored == 0 then
  -- The tombstone has expired, or the hash is damaged. The member's last sequence number is
  -- at least as high as any version that was counted here, and where its entry was trimmed
  -- the floor is, so versions go on from there. Neither gets near a number that only direct commands leave.
  local floor = number_of(read('HGET', KEYS[5], 'floor')) or 0
  score = tonumber(score or '0')
  version = math.max(score < own and score or 0, floor < own and floor or 0) + 1
elseif version == 0 then
  version = stored + 1
end
if version <= stored and not kept and not last then
  return redis.error_reply('STALE version ' .. decimal(version) .. ' of ' .. member .. ' is not newer than the stored '
    .. decimal(stored) .. ' (at most ' .. decimal(newest) .. ')')
end

if mode == 'purge' then
  record[2] = decimal(seq)
  local hard = record[1] == 'soft' and number_of(was.hard)
  if hard and hard > 0 and hard < seq then
    given['hard'], record[3], record[4] = true, 'hard', decimal(hard)
  end
end

local stale = {}
if mode == 'merge' then
  if #old == 0 or was.deleted then
    return redis.error_reply('ABSENT ' .. member)
  end
  for i = 1, #old, 2 do
    local form = forms[kind][old[i]] or forms.c.permissions
    if not given[old[i]] and (given['deleted'] or #old[i] + #old[i + 1] > form[1] + 80 or #record >= 2 * most) then
      stale[#stale + 1] = old[i] -- without bounds it must neither be published nor stop a revocation
    elseif not given[old[i]] then
      given[old[i]] = old[i + 1]
      record[#record + 1] = old[i]
      record[#record + 1] = old[i + 1]
    end
  end
else
  for _, field in ipairs(read('HKEYS', KEYS[1])) do
    if not given[field] then
      stale[#stale + 1] = field
    end
  end
end

local required = { o = { 'etag', 'content-type', 'body' }, c = { not given['disabled'] and 'hash' or nil }, p = {} }
for _, field in ipairs(required[kind]) do
  if not given[field] and not given['deleted'] then
    return invalid(field .. ' of ' .. short .. ' is missing')
  end
end

local redirects = string.sub(given['status'] or '', 1, 1) == '3'
if redirects ~= (string.find('\n' .. (given['headers'] or ''), '\nlocation: ', 1, true) ~= nil) then
  return invalid('headers of ' .. short .. ': want location with status 301, 302, 307 and 308, and only with these')
end

local now = read('TIME')
local published = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
if kept or last then -- readers take the later of two writes with one version; the clock may have stepped back
  published = math.max(published, math.min((number_of(read('HGET', KEYS[1], 'published')) or 0) + 1, newest))
end
record[#record + 1] = 'version'
record[#record + 1] = decimal(version)
record[#record + 1] = 'published'
record[#record + 1] = decimal(published)
if given['seq'] then
  record[#record + 1] = 'seq'
  record[#record + 1] = decimal(seq)
end

-- The event. Its digest covers the digest before and all that follows it here, but of each
-- body its length only: hashing megabytes would hold Redis up.
local event = { netstring(epoch), netstring(decimal(seq)), netstring(member), netstring(trace) }
local chained = { unpack(event) }
for i = 1, #record, 2 do
  local field, value = record[i], record[i + 1]
  event[#event + 1] = netstring(field)
  event[#event + 1] = netstring(value)
  chained[#chained + 1] = netstring(field)
  if field == 'body' or string.sub(field, 1, 5) == 'body.' then
    value = tostring(#value)
  end
  chained[#chained + 1] = netstring(value)
end
-- Where the chain is gone, or lacks the write before, it begins anew.
local previous = ''
if head and string.sub(head, 1, -42) == decimal(seq - 1) then
  previous = string.sub(head, -40)
end
local digest = redis.sha1hex(netstring(previous) .. table.concat(chained))
local link = decimal(seq) .. ' ' .. digest

-- When memory is used up Redis refuses the first command if that may take some, and none after
-- it. A grant is refused so. A deletion, revocation or purge must not be: it begins with a command
-- that takes none, and changes nothing, since seq never expires.
local takes = { 'SET', KEYS[4], ARGV[3], 'NX' }
local writes = {
  (given['deleted'] or given['disabled'] or kind == 'p') and { 'PERSIST', KEYS[2] } or takes,
  takes,
  counted and { 'INCR', KEYS[2] } or { 'SET', KEYS[2], decimal(seq) },
  { 'ZADD', KEYS[3], decimal(seq), member },
  { 'HSET', KEYS[1], unpack(record) },
}
for i = 1, #stale, 1000 do -- a damaged record may have more than unpack takes
  writes[#writes + 1] = { 'HDEL', KEYS[1], unpack(stale, i, math.min(i + 999, #stale)) }
end
if expiry > 0 then
  writes[#writes + 1] = { 'PEXPIRE', KEYS[1], decimal(expiry) }
else
  writes[#writes + 1] = { 'PERSIST', KEYS[1] }
end
local needed = needs -- from now on by writers and readers
for i = 1, #record, 2 do
  local form = forms[kind][record[i]]
  needed = math.max(needed, form and form[3] or 1)
end
local chain = { 'HSET', KEYS[5], decimal(seq % ring), link, 'head', link }
if remembered then
  local from = math.max(1, #requests - 31 * 60 + 1) -- more in one field: they are not random
  while from < #requests and (tonumber(string.sub(requests, from + 44, from + 59)) or 0) <= seq - ring do
    from = from + 60
  end
  chain[7], chain[8] = remembered, string.sub(requests, from) .. entry .. string.format('%016.0f%016.0f', version, seq)
end
if lost then -- from this number on the log is complete
  chain[#chain + 1] = 'lost'
  chain[#chain + 1] = decimal(seq)
end
if needed > needs then
  chain[#chain + 1] = 'needs'
  chain[#chain + 1] = decimal(needed)
end
writes[#writes + 1] = chain
writes[#writes + 1] = { ARGV[7], ARGV[6], netstring('2') .. netstring(digest) .. table.concat(event) }

-- Nothing is written before all that can fail has been checked: Redis takes nothing back. In a
-- slot of a Cluster that is on its way elsewhere no key may vanish in between: no DEL.
for _, write in ipairs(writes) do
  permit(unpack(write))
end
for _, write in ipairs(writes) do
  redis.call(unpack(write))
end

-- The audit comes last, and whatever becomes of it, the write counts: who gives this user its permissions decides
-- whether it is audited.
local function audit()
  local is, fields = {}, {}
  for i = 1, #record, 2 do
    is[record[i]] = record[i + 1]
  end
  local change = was.version and not was.deleted and 'changed' or 'put'
  if is.deleted then
    change = 'deleted'
  elseif is.disabled and is.disabled ~= was.disabled then
    change = is.disabled == 'revoked' and 'revoked' or 'disabled'
  elseif was.disabled and not is.disabled then
    change = 'enabled'
  end
  for field in pairs(change ~= 'put' and change ~= 'deleted' and forms.c or {}) do
    if was[field] ~= is[field] then
      fields[#fields + 1] = field
    end
  end
  table.sort(fields, precedes)
  local author = string.gsub(string.sub(ARGV[9], 1, 128), '[^ -~]', '?')
  author = string.match(author, '^ *(.-) *$')
  local entry = { 'XADD', KEYS[6], 'MAXLEN', '~', decimal(audited), '*', 'device', id, 'version', decimal(version),
    'change', change, 'fields', table.concat(fields, ','), 'author', author }
  local known, permitted = pcall(redis.acl_check_cmd, unpack(entry)) -- raises if redis.conf has renamed the command
  if not redis.acl_check_cmd or known and permitted then
    redis.pcall(unpack(entry))
  end
end
if KEYS[6] then
  audit()
end
return { version, seq }
