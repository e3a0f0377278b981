-- Run each command that a script of calls runs, and leave nothing that lasts: one that met what it may not do would have done half
-- of its work.
-- KEYS: one that nobody uses.
-- Returns 1, or the first error.
local key, failed = KEYS[1], nil
for _, command in ipairs({
  {'TIME'},
  {'DEL', key},
  {'SET', key, '', 'PX', 1000},
  {'GET', key},
  {'PTTL', key},
  {'PEXPIRE', key, 1000},
  {'DEL', key},
  {'ZADD', key, 0, ''},
  {'ZCARD', key},
  {'ZREMRANGEBYSCORE', key, 1, 1},
  {'ZREM', key, ''},
  {'DEL', key},
  {'HINCRBY', key, '', 1},
  {'HSET', key, '', 1},
  {'DEL', key},
}) do
  local reply = redis.pcall(unpack(command))
  failed = failed or (type(reply) == 'table' and reply.err and reply)
end
return failed or 1
