-- The devices whose secrets somebody guesses, with the networks from which that happens: edge/guesses.go in Lua,
-- whose comments have the reasons. Times are unix ms.

local network = require("gatehouse.address").network

local floor, min, next = math.floor, math.min, next

local M = {}
M.__index = M

-- life_ms is how long a wrong secret is remembered, beyond the sidecar's answer about it.
local life_ms = 60000

-- max_once and max_guessed bound the pairs of a device and a network with one wrong secret, and with more. Beyond
-- max_once, the first wrong secret of a pair counts as its second; beyond max_guessed, any pair is forgotten.
local max_once, max_guessed = 4096, 8192

function M.new()
  return setmetatable({
    once = {}, -- by device and network: when
    once_count = 0,
    devices = {}, -- by device, by network: at_ms and for_ms of the sidecar's answer, and own
    count = 0, -- of networks in devices
  }, M)
end

-- within reports whether less than ms have passed since a time. If it is in the future, the clock was set back.
local function within(since_ms, now_ms, ms)
  return since_ms <= now_ms and now_ms < since_ms + ms
end

-- first remembers a wrong secret of a pair, and reports whether it is the first one.
local function first(self, device, net, now_ms)
  local key = device .. "\n" .. net -- no id has a line feed
  local at_ms = self.once[key]
  if at_ms and within(at_ms, now_ms, life_ms) then
    return false
  end
  if not at_ms then
    if self.once_count >= max_once then
      return false -- to forget others would permit them another first one
    end
    self.once_count = self.once_count + 1
  end
  self.once[key] = now_ms
  return true
end

-- find returns what is known about a pair, nil if its life has ended.
local function find(self, device, net, now_ms)
  local networks = self.devices[device]
  local known = networks and networks[net]
  return known and within(known.at_ms, now_ms, known.for_ms + life_ms) and known or nil
end

local function drop(self, device, net)
  local networks = self.devices[device]
  if not networks or not networks[net] then
    return
  end
  networks[net] = nil
  self.count = self.count - 1
  if not next(networks) then
    self.devices[device] = nil
  end
end

local function set(self, device, net, now_ms, for_ms, own)
  local networks = self.devices[device]
  if not networks or not networks[net] then
    if self.count >= max_guessed then
      local any, of = next(self.devices)
      drop(self, any, next(of))
      networks = self.devices[device]
    end
    if not networks then
      networks = {}
      self.devices[device] = networks
    end
    self.count = self.count + 1
  end
  networks[net] = { at_ms = now_ms, for_ms = for_ms, own = own }
end

-- throttled_s returns for how many seconds, rounded up, all secrets of a device from a source are throttled; 0: they
-- aren't. Then, unless the secret is known to be right, the sidecar is asked about it, and until its answer the
-- device's secrets from there are suspect.
function M:throttled_s(device, source, now_ms, right)
  local net = network(source)
  if not net then
    return 0
  end
  local known = find(self, device, net, now_ms)
  if not known then
    if not right then
      set(self, device, net, now_ms, 0, false)
    end
    return 0
  end
  if known.own or not within(known.at_ms, now_ms, known.for_ms) then
    return 0
  end
  return min(floor((known.at_ms + known.for_ms - now_ms + 999) / 1000), 65535)
end

-- answered stores the sidecar's answer about a secret of a device from a source; outcome nil: it gave none. right: the
-- secret is known to be right.
function M:answered(device, source, now_ms, outcome, throttle_ms, right)
  local net = network(source)
  if not net then
    return
  end
  if outcome == "allow" then -- the device authenticates from there
    drop(self, device, net)
  elseif outcome == "deny" then
    set(self, device, net, now_ms, throttle_ms, throttle_ms > 0)
  elseif outcome == "throttled" then
    set(self, device, net, now_ms, throttle_ms, false)
  elseif not outcome then
    local known = find(self, device, net, now_ms)
    if known and (known.own or not right) then -- its last answer holds; a right secret must not keep the device out
      known.at_ms = now_ms
    end
  end
end

-- doubts reports whether the sidecar must decide about a secret about which shared memory has decided.
function M:doubts(device, source, now_ms, guess)
  local net = network(source)
  if not net then
    return false -- all devices may share it
  end
  local known = find(self, device, net, now_ms)
  if known then
    return not (known.own and within(known.at_ms, now_ms, known.for_ms))
  end
  return guess == "wrong" and not first(self, device, net, now_ms)
end

-- sweep forgets what has ended.
function M:sweep(now_ms)
  for key, at_ms in next, self.once do
    if not within(at_ms, now_ms, life_ms) then
      self.once[key] = nil
      self.once_count = self.once_count - 1
    end
  end
  if self.count == 0 then
    return
  end
  for device, networks in next, self.devices do
    for net in next, networks do
      if not find(self, device, net, now_ms) then
        drop(self, device, net)
      end
    end
  end
end

return M
