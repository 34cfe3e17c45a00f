-- Move an entry to the dead letters, or (without a fence) back into the queue.
--
-- KEYS  queue, leased, all, dead, entry
-- ARGV  id, fence or '', reason
-- 1 if it was moved
local entry = redis.call('HMGET', KEYS[5], 'accepted', 'fence')
if not entry[1] then
  return 0
end
if ARGV[2] == '' then
  if redis.call('ZREM', KEYS[4], ARGV[1]) == 0 then
    return 0
  end
  redis.call('HINCRBY', KEYS[5], 'fence', 1)
  redis.call('HDEL', KEYS[5], 'dead')
  redis.call('ZADD', KEYS[3], entry[1], ARGV[1])
  redis.call('ZADD', KEYS[1], entry[1], ARGV[1])
  return 1
end
if entry[2] ~= ARGV[2] then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[4], entry[1], ARGV[1])
redis.call('HSET', KEYS[5], 'dead', ARGV[3])
return 1
