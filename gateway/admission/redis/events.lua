-- EVENTS_OF says whose streams there are: `shared` or `tenant`; MAX_EVENTS about how many events each keeps.

local function decoded(name)
  return (string.gsub(name, '%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

local function stream_key()
  return EVENTS_OF == 'tenant' and string.match(KEYS[1], '^(.-)call:') .. 'events' or 'gw:events'
end

local into_ledger = book

-- Book as above, and tell of it in the stream: one event for each booking, and so for each call.
local function book(now, at, figures)
  into_ledger(now, at, figures)
  if #figures == 0 then
    return
  end
  local told, key = {}, stream_key()
  for i = 1, #figures, 2 do
    told[figures[i]] = figures[i + 1]
  end
  local name, model = string.match(ARGV[at], '^(.-) (.*)$')
  local event = {
    'XADD', key, 'MAXLEN', '~', MAX_EVENTS, '*',
    'call', id_of(KEYS[1]),
    'event', told.refused and 'refused' or 'settled',
    'at_us', text(now),
    'tenant', decoded(ARGV[at + 1]),
    'key', decoded(name),
    'model', decoded(model),
    'prompt_tokens', told.prompt_tokens or '0',
    'completion_tokens', told.completion_tokens or '0',
    'cached_tokens', told.cached_tokens or '0',
    'reasoning_tokens', told.reasoning_tokens or '0',
    'source', told.estimated_tokens and 'estimated' or 'engine',
  }
  local added = redis.pcall(unpack(event))
  if type(added) == 'table' and added.err then
    if string.find(added.err, 'WRONGTYPE', 1, true) then
      redis.call('DEL', key)  -- not ours
    end
    redis.call(unpack(event))
  end
  redis.call('PEXPIRE', key, ARGV[at + 2])
end
