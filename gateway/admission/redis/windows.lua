-- The arithmetic of windows, as in limit.py, and how states are read and written.
-- Numbers are doubles: integers are exact below 2^53, products may be larger, and tostring() would keep 14 digits only.

local MAX_COUNT = 2 ^ 53 - 1
local MAX_TTL_MS = 10 * 366 * 86400 * 1000  -- far beyond any window, and far below what PX overflows at
local DAY_US = 86400 * 1000000

local function text(integer)
  return string.format('%.0f', integer)
end

-- Return floor(a * b / c) and whether there was a remainder, exactly, for integers 0 <= a < c and b up to 2^53.
-- A product that a double cannot hold is built bit by bit, in steps that stay below 2c.
local function muldiv(a, b, c)
  if a * b <= MAX_COUNT then
    return math.floor(a * b / c), a * b % c > 0
  end
  local bits, quotient, rest = {}, 0, 0
  while b > 0 do
    bits[#bits + 1] = b % 2
    b = math.floor(b / 2)
  end
  for i = #bits, 1, -1 do
    quotient, rest = quotient * 2, rest * 2
    if rest >= c then
      quotient, rest = quotient + 1, rest - c
    end
    if bits[i] == 1 then
      if rest >= c - a then
        quotient, rest = quotient + 1, rest - (c - a)
      else
        rest = rest + a
      end
    end
  end
  return quotient, rest > 0
end

-- Return how long a bucket takes to refill by `units`, rounded up.
local function time_of(units, limit, window)
  local whole = math.floor(units / limit)
  local part, rest = muldiv(units - whole * limit, window, limit)
  return whole * window + part + (rest and 1 or 0)
end

local function refill(used, at, now, limit, window)
  at = math.min(at, now)
  local windows = math.floor((now - at) / window)
  if windows * limit >= used then
    return 0, now
  end
  local units = windows * limit + muldiv(now - at - windows * window, limit, window)
  if units >= used then
    return 0, now
  end
  return used - units, at + time_of(units, limit, window)
end

-- Return year, month and day of the month of a UTC day, and how long the month still lasts from its start on (days).
-- Years begin in March 1968, in cycles of four that end with a leap day, which holds until February 2100.
local function calendar(day)
  local since = day + 671
  local year = math.min(math.floor(since % 1461 / 365), 3)
  local year_day = since % 1461 - year * 365
  local month = math.floor((5 * year_day + 2) / 153)
  local month_end = month < 11 and math.floor((153 * month + 155) / 5) or (year == 3 and 366 or 365)
  local number = (1968 + 4 * math.floor(since / 1461) + year) * 12 + month + 2
  local month_day = year_day - math.floor((153 * month + 2) / 5) + 1
  return math.floor(number / 12), number % 12 + 1, month_day, month_end - year_day
end

-- Return the number of the UTC day or month at `now`, and when it ends.
local function period(kind, now)
  local day = math.floor(now / DAY_US)
  if kind == 'day' then
    return day, (day + 1) * DAY_US
  end
  local year, month, _, left = calendar(day)
  return year * 12 + month, (day + left) * DAY_US
end

-- Return the two integers of a state; nothing when there is none. What is not ours is taken away.
local function read(key)
  local value = redis.pcall('GET', key)
  if not value then
    return nil
  end
  local used, mark = string.match(type(value) == 'string' and value or '', '^(%d+) (%d+)$')
  if not used then
    redis.call('DEL', key)
    return nil
  end
  return tonumber(used), tonumber(mark)
end

-- Write a state. Nothing used (or less) is what an absent key means.
local function write(key, used, mark, ttl_us)
  if used > 0 and ttl_us > 0 then
    local ttl_ms = math.min(math.ceil(ttl_us / 1000), MAX_TTL_MS)
    redis.call('SET', key, text(used) .. ' ' .. text(mark), 'PX', text(ttl_ms))
  else
    redis.call('DEL', key)
  end
end

-- Return the level of a limit at `now`: what is used, and the time that goes with its kind.
local function level(key, kind, limit, window, now)
  if kind == 'lease' then
    if type(redis.pcall('ZREMRANGEBYSCORE', key, '-inf', text(now))) == 'table' then
      redis.call('DEL', key)
    end
    return redis.call('ZCARD', key), 0
  end
  local used, mark = read(key)
  if kind == 'bucket' then
    if not used or limit == 0 then
      return 0, 0
    end
    used, mark = refill(used, mark, now, limit, window)
    return used, now - mark
  end
  local number, ends = period(kind, now)
  return mark == number and used or 0, ends - now
end

-- Write what is used of a limit; `clock` as in the level that was read at `now`.
local function store(key, kind, used, clock, limit, window, now)
  if kind == 'bucket' then
    write(key, used, now - clock, time_of(used, limit, window) - clock)
  else
    write(key, used, period(kind, now), clock)
  end
end

-- Return when a call was reserved, as its record says; nothing where that says it was not. Behind it stand the places of
-- the limits that were not charged.
local function reserved_at(record)
  return record and tonumber(string.match(record, '^%d+'))
end

local function was_over(record, i)
  return string.find(record .. ' ', ' ' .. i .. ' ', 1, true)
end

-- Return a call's id, by which it holds slots: the end of its record's key.
local function id_of(record)
  return string.match(record, ':call:(.*)$')
end

local function hold(key, record, now, lease)
  redis.call('ZADD', key, text(now + lease), id_of(record))
  local ttl = math.ceil(lease / 1000)
  if redis.call('PTTL', key) < ttl then  -- of a gateway with longer leases it is longer
    redis.call('PEXPIRE', key, text(ttl))
  end
end
