-- Claim a key, or return its record. One command, so nothing happens between the read and the write.
--
-- KEYS  record, unsettled, marker
-- ARGV  the marker as the caller knows it, the attempt, the body of the new record; for a claim that ends by itself
--       also after how many milliseconds
--
-- {now}                 there was no record: the caller has claimed the key
-- {now, record}         there is a record: nothing is written
-- {now, false, marker}  the store was wiped or failed over since the caller's self-check: nothing is written
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local found = redis.call('MGET', KEYS[1], KEYS[3])
if found[1] then
  return {now, found[1]}
end
if found[2] ~= ARGV[1] then
  return {now, false, found[2] or ''}
end
local value = 'k1' .. '0000000001' .. now .. ARGV[2] .. now .. ARGV[3]
if ARGV[4] then
  redis.call('SET', KEYS[1], value, 'PX', ARGV[4])    -- Repeatable: a second effect is harmless
else
  redis.call('SET', KEYS[1], value)    -- No TTL: a claim that expired by itself would allow a second effect.
end
redis.call('ZADD', KEYS[2], now, string.sub(KEYS[1], -32))
return {now}
