-- Keep a parked message; one with its id is replaced.
--
-- KEYS  parked messages (a hash by id), their order (a sorted set by time), those that were redelivered (by time)
-- ARGV  1 the id   2 when it was parked, in seconds since 1970   3 the message
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
