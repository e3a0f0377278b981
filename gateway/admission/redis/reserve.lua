-- Take all of a call's reservation or nothing.
-- KEYS: the call's record; then the state of each limit; on a cluster the ledger's day.
-- ARGV: lease (us), TTL of a record and of a refusal's (ms); of the ledger: key and model, tenant, how long it is kept
-- (ms); for each limit its kind, limit, window (us), and 1 for a shadow; then for each limit the cost.
-- Returns 1 admitted, 0 refused; then for each limit its level before this call. Of a call that was admitted before, the
-- level says whether the limit was charged: it then fits, and else does not, whatever others have used since.
local now = now_us()
local limits = #KEYS - 1 - MORE_KEYS
local lease = tonumber(ARGV[1])
local record = redis.call('GET', KEYS[1])
local asked, reply, refused = {}, {1}, false

for i = 1, limits do
  local at = 4 * i + 3
  local ask = {
    key = KEYS[i + 1],
    kind = ARGV[at],
    limit = tonumber(ARGV[at + 1]),
    window = tonumber(ARGV[at + 2]),
    cost = tonumber(ARGV[4 * limits + 6 + i]),
  }
  ask.used, ask.clock = level(ask.key, ask.kind, ask.limit, ask.window, now)
  ask.over = ask.used + ask.cost > ask.limit or ask.limit == 0
  if ask.over and redis.call('PTTL', ask.key) == -1 then
    -- Nothing of ours lives for ever: this would lock its key out until someone looks.
    redis.call('DEL', ask.key)
    ask.used, ask.clock = level(ask.key, ask.kind, ask.limit, ask.window, now)
    ask.over = ask.cost > ask.limit or ask.limit == 0
  end
  refused = refused or (ask.over and ARGV[at + 3] ~= '1')
  asked[i] = ask
  reply[2 * i], reply[2 * i + 1] = ask.used, ask.clock
end

if record and record ~= 'refused' then
  for i, ask in ipairs(asked) do
    if was_over(record, i) then
      reply[2 * i] = math.max(ask.used, ask.limit - ask.cost + 1)
    else
      reply[2 * i] = math.max(math.min(ask.used, ask.limit) - ask.cost, 0)
    end
  end
elseif refused then
  reply[1] = 0
  if not record then  -- else the same refusal is asked again, because its answer was lost
    redis.call('SET', KEYS[1], 'refused', 'PX', ARGV[3])
    if string.sub(ARGV[4], -1) ~= ' ' then  -- without a model nothing is booked: it is a part of a call
      book(now, 4, {'refused', 1})
    end
  end
else
  local over = ''
  for i, ask in ipairs(asked) do
    if ask.over then
      over = over .. ' ' .. i  -- a shadow: had it been enforced, this call would not have been charged
    elseif ask.kind == 'lease' then
      hold(ask.key, KEYS[1], now, lease)
    else
      store(ask.key, ask.kind, ask.used + ask.cost, ask.clock, ask.limit, ask.window, now)
    end
  end
  redis.call('SET', KEYS[1], text(now) .. over, 'PX', ARGV[2])
end
return reply
