-- Keep a finding, unless there is one with its id.
--
-- KEYS  findings (a hash by id), their order (a sorted set by time)
-- ARGV  1 the id   2 when it was found, in seconds since 1970   3 the finding
--
-- {1, finding} it was new, or {0, finding} with the one that is there
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[3]) == 1 then
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
  return {1, ARGV[3]}
end
return {0, redis.call('HGET', KEYS[1], ARGV[1])}
