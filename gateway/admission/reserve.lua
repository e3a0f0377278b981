-- Take all of a call's reservation or nothing.
-- KEYS: the call's record; then the state of each limit.
-- ARGV: call id, lease (us), TTL of a record (ms); then for each limit its kind, limit, window (us), cost, and 1 for a shadow.
-- Returns 1 admitted, 0 refused, 2 admitted before; then for each limit its level before this call.
local now = now_us()
local call_id, lease = ARGV[1], tonumber(ARGV[2])
local known = redis.call('EXISTS', KEYS[1]) == 1
local asked, reply, refused = {}, {1}, false

for i = 2, #KEYS do
  local at = 5 * i - 6
  local ask = {
    key = KEYS[i],
    kind = ARGV[at],
    limit = tonumber(ARGV[at + 1]),
    window = tonumber(ARGV[at + 2]),
    cost = tonumber(ARGV[at + 3]),
  }
  ask.used, ask.clock = level(ask.key, ask.kind, ask.limit, ask.window, now)
  ask.over = ask.used + ask.cost > ask.limit or ask.limit == 0
  if ask.over and redis.call('PTTL', ask.key) == -1 then
    -- Nothing of ours lives for ever: this would lock its key out until someone looks.
    redis.call('DEL', ask.key)
    ask.used, ask.clock = level(ask.key, ask.kind, ask.limit, ask.window, now)
    ask.over = ask.cost > ask.limit or ask.limit == 0
  end
  refused = refused or (ask.over and ARGV[at + 4] ~= '1')
  asked[i - 1] = ask
  reply[2 * i - 2], reply[2 * i - 1] = ask.used, ask.clock
end

if known then
  reply[1] = 2
elseif refused then
  reply[1] = 0
else
  for _, ask in ipairs(asked) do
    if ask.over then
      -- a shadow: had it been enforced, this call would not have been charged
    elseif ask.kind == 'lease' then
      hold(ask.key, call_id, now, lease)
    else
      store(ask.key, ask.kind, ask.used + ask.cost, ask.clock, ask.limit, ask.window, now)
    end
  end
  redis.call('SET', KEYS[1], text(now), 'PX', ARGV[3])
end
return reply
