-- Change settings, all in one step.
-- KEYS: their hash.
-- ARGV: the version from then on; 1 to do it only where nothing is kept, or 0; then for each change its name, its value
-- ('' removes it), and the value that must be there before ('' for any, or none).
-- Returns 1, or 0 when something was kept already.
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
for i = 3, #ARGV, 3 do
  local name, value, before = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if before == '' or redis.call('HGET', KEYS[1], name) == before then
    if value == '' then
      redis.call('HDEL', KEYS[1], name)
    else
      redis.call('HSET', KEYS[1], name, value)
    end
  end
end
redis.call('HSET', KEYS[1], 'version', ARGV[1])
return 1
