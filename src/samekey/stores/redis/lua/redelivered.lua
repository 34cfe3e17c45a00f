-- Replace a parked message by the marked one, if it is still the one that the caller read; forget some old ones.
--
-- KEYS  parked messages (a hash by id), their order (a sorted set by time), those that were redelivered (by time), audit
-- ARGV  1 the id   2 the message as the caller read it   3 the marked message   4 when it was redelivered
--       5 the entry for the audit log   6 forget what was redelivered before this time   7 at most so many
--
-- {1, message} written, or {0, message} with the one that is there
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found ~= ARGV[2] then
  return {0, found}
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
redis.call('RPUSH', KEYS[4], time[1] .. string.sub('00000' .. time[2], -6) .. ARGV[5])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[6], 'LIMIT', 0, ARGV[7])) do
  redis.call('HDEL', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end
return {1, ARGV[3]}
