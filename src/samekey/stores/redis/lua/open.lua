-- Claim a key, or show what is there. One command, so nothing happens between the look and the write.
--
-- KEYS  record, unsettled, marker
-- ARGV  the marker as the caller knows it, the attempt, the body of the new record
--
-- {now}                 it was absent: it is the caller's
-- {now, record}         it is there: nothing is written
-- {now, false, marker}  the store is not what the caller thinks it is (wiped, failed over): nothing is written
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local found = redis.call('MGET', KEYS[1], KEYS[3])
if found[1] then
  return {now, found[1]}
end
if found[2] ~= ARGV[1] then
  return {now, false, found[2] or ''}
end
-- No TTL: a claim that expired by itself would be a second effect.
redis.call('SET', KEYS[1], 'k1' .. '0000000001' .. now .. ARGV[2] .. now .. ARGV[3])
redis.call('ZADD', KEYS[2], now, string.sub(KEYS[1], -32))
return {now}
