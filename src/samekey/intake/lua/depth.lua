-- How full the buffer is.
--
-- KEYS  all, leased, dead, gate
-- {depth, leased, oldest or '', dead, diverting}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local depth = redis.call('ZCARD', KEYS[1])
local held_until = tonumber(redis.call('HGET', KEYS[4], 'held_until') or '0')
return {
  depth, redis.call('ZCARD', KEYS[2]), oldest[2] or '', redis.call('ZCARD', KEYS[3]),
  (now < held_until or depth > 0) and 1 or 0
}
