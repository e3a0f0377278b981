-- The server's own time in microseconds, so that gateways with skewed clocks count as one.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
