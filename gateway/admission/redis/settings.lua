-- Change settings, all in one step; or write back those of a gateway where the store lost them.
-- KEYS: their hash.
-- ARGV: of a change the id of its version; of what is written back the version that the gateway knows; '' or, to write
-- back, the id of the version from then on, if others are there; then for each change its name, its value ('' removes
-- it), and the value that must be there before ('' for any, or none).
-- A version is its id, and behind it, each after a dot, the origins of what was ever kept under it: a hash that begins
-- anew has an origin of its own, so that whoever knows another sees that something was lost.
-- Returns 1, or 0 when what is to be written back is there already.
local MOST_ORIGINS = 8

local function origins_of(version)
  return version and string.match(version, '^%x+(%..+)$')
end

local function with(origins, others)
  local count = 0
  for origin in string.gmatch(others, '%.%x+') do
    if not string.find(origins .. '.', origin .. '.', 1, true) then
      origins = origins .. origin
    end
  end
  for _ in string.gmatch(origins, '%.') do
    count = count + 1
  end
  return (string.gsub(origins, '%.%x+', '', math.max(count - MOST_ORIGINS, 0)))  -- the oldest are forgotten
end

local version, id = ARGV[1], ARGV[2]
local there = redis.pcall('HGET', KEYS[1], 'version')
if type(there) == 'table' then
  redis.call('DEL', KEYS[1])  -- not ours
  there = false
end
local origins = origins_of(there)
local command = 'HSET'
if id == '' then
  version = version .. (origins or '.' .. version)
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  local known = origins_of(version)
  local all = known and origins and with(origins, known)
  if not all or all == origins then
    return 0
  end
  version, command = id .. all, 'HSETNX'
end
for i = 3, #ARGV, 3 do
  local name, value, before = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if before == '' or redis.call('HGET', KEYS[1], name) == before then
    if value == '' then
      redis.call('HDEL', KEYS[1], name)
    else
      redis.call(command, KEYS[1], name, value)
    end
  end
end
redis.call('HSET', KEYS[1], 'version', version)
return 1
