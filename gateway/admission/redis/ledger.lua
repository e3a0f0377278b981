-- Return the UTC date at `now`: 20261130.
local function date(now)
  local year, month, day = calendar(math.floor(now / DAY_US))
  return string.format('%04d%02d%02d', year, month, day)
end

-- Add to the ledger of the tenant's day. ARGV[at]: key and model; then the tenant, and how long it is kept (ms).
-- `figures`: counters, each with what to add; the first is 1.
local function book(now, at, figures)
  local key = string.match(KEYS[1], '^(.-)call:') .. 'ledger:' .. date(now)
  for i = 1, #figures, 2 do
    local field = figures[i] .. ' ' .. ARGV[at]
    local total = redis.pcall('HINCRBY', key, field, figures[i + 1])
    if type(total) == 'table' then
      if string.find(total.err, 'WRONGTYPE', 1, true) then
        redis.call('DEL', key)  -- not ours
      end
      total = redis.call('HINCRBY', key, field, figures[i + 1])
    end
    if i == 1 and total == 1 then
      redis.call('HSET', key, 'tenant', ARGV[at + 1])
      redis.call('PEXPIRE', key, text(math.ceil((DAY_US - now % DAY_US) / 1000) + ARGV[at + 2]))
    end
  end
end
