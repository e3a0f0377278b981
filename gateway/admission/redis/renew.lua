-- Extend the leases and the record of a call that is under way.
-- KEYS: the call's record; then its leases.
-- ARGV: lease (us), TTL of a record (ms).
-- Returns 1, or 0 when the call is settled, refused or unknown.
if not reserved_at(redis.call('GET', KEYS[1])) then
  return 0
end
local now = now_us()
for i = 2, #KEYS do
  hold(KEYS[i], KEYS[1], now, tonumber(ARGV[1]))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
