-- End a call's reservation, once.
-- KEYS: the call's record; then the state of each limit to change.
-- ARGV: call id, TTL of the mark (ms) that a reservation still on its way must find, or 0; then for each limit its
-- kind, limit, window (us), and what to add.
-- Returns 1, or 0 when there was nothing to settle.
local now = now_us()
local reserved = redis.call('GET', KEYS[1])
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], 'settled', 'PX', ARGV[2])
end
if not reserved or reserved == 'settled' then
  return 0
end

for i = 2, #KEYS do
  local key, at = KEYS[i], 4 * i - 5
  local kind, limit, window = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if kind == 'lease' then
    redis.call('ZREM', key, ARGV[1])
  elseif kind == 'bucket' or period(kind, tonumber(reserved)) == period(kind, now) then
    local used, clock = level(key, kind, limit, window, now)
    used = math.min(used + tonumber(ARGV[at + 3]), MAX_COUNT)
    store(key, kind, used, clock, limit, window, now)
  end
end
return 1
