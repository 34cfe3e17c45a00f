-- Add an operation to the log of an entry, if the log is as long as the caller saw it.
--
-- KEYS  entry, log
-- ARGV  seen, operation
-- 1, or the entry as it is now, or {}
local entry = redis.call('HMGET', KEYS[1], 'blob', 'accepted', 'fence')
if not entry[1] then
  return {}
end
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[1]) then
  return {entry[1], entry[2], entry[3], unpack(redis.call('LRANGE', KEYS[2], 0, -1))}
end
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
