-- End a call's reservation, once.
-- KEYS: the call's record; then the state of each limit to change; on a cluster the ledger's day.
-- ARGV: of the ledger: key and model, tenant, how long it is kept (ms); for each limit its kind, limit, window (us);
-- TTL of the mark (ms) that a reservation still on its way must find, or 0; when the call ended (us), or 0 for now; what
-- to do with a call without a reservation: 0 nothing, 1 charge it, 2 reserve it, for nobody saw it end; for each limit
-- what to add; of 1 and 2, for each limit what to add where there was no reservation; then what to book: counters and
-- figures in turn, or nothing.
-- Returns 1, or 0 when there was nothing to settle.
local now = now_us()
local record = redis.call('GET', KEYS[1])
local reserved = reserved_at(record)
local limits = #KEYS - 1 - MORE_KEYS
local mark_ttl, ended, missing = ARGV[3 * limits + 4], tonumber(ARGV[3 * limits + 5]), ARGV[3 * limits + 6]
local charges = missing ~= '0'
if mark_ttl == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], 'settled', 'PX', mark_ttl)
end
if record == 'settled' or not (reserved or charges) then
  return 0
end
ended = ended > 0 and math.min(ended, now) or now
local adds, books = 3 * limits + 6, 4 * limits + 7 + (charges and limits or 0)
local charge = not reserved
if charge then
  reserved, adds = ended, adds + limits
end

if missing == '2' then
  redis.call('SET', KEYS[1], charge and text(reserved) or record, 'PX', mark_ttl)
end

for i = 1, limits do
  local key, at = KEYS[i + 1], 3 * i + 1
  local kind, limit, window = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if kind == 'lease' then
    redis.call('ZREM', key, id_of(KEYS[1]))
  elseif kind == 'bucket' or period(kind, reserved) == period(kind, now) then
    local used, clock = level(key, kind, limit, window, now)
    local add = tonumber(ARGV[adds + i])
    if charge and kind == 'bucket' and limit > 0 then
      add = refill(add, ended, now, limit, window)  -- what has not come back since
    end
    store(key, kind, math.min(used + add, MAX_COUNT), clock, limit, window, now)
  end
end
book(ended, 1, {unpack(ARGV, books)})
return 1
