-- End a call's reservation, once.
-- KEYS: the call's record; then the state of each limit to change.
-- ARGV: of the ledger: key and model, tenant, how long it is kept (ms); for each limit its kind, limit, window (us);
-- TTL of the mark (ms) that a reservation still on its way must find, or 0; for each limit what to add; then what to
-- book: counters and figures in turn, or nothing.
-- Returns 1, or 0 when there was nothing to settle.
local now = now_us()
local reserved = tonumber(redis.call('GET', KEYS[1]))
local limits = #KEYS - 1
local mark_ttl = ARGV[3 * limits + 4]
if mark_ttl == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], 'settled', 'PX', mark_ttl)
end
if not reserved then
  return 0
end

for i = 1, limits do
  local key, at = KEYS[i + 1], 3 * i + 1
  local kind, limit, window = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if kind == 'lease' then
    redis.call('ZREM', key, id_of(KEYS[1]))
  elseif kind == 'bucket' or period(kind, reserved) == period(kind, now) then
    local used, clock = level(key, kind, limit, window, now)
    used = math.min(used + tonumber(ARGV[3 * limits + 4 + i]), MAX_COUNT)
    store(key, kind, used, clock, limit, window, now)
  end
end
book(now, 1, {unpack(ARGV, 4 * limits + 5)})
return 1
