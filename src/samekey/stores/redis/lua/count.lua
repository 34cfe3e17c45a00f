-- Add to the counts of one hour, which Redis deletes when their time is over.
--
-- KEYS  the hash of the hour
-- ARGV  1 when the hour begins, in seconds since 1970   2 for how many seconds a minute is kept
--       3 how far ahead of this server's clock a minute may be
--       4.. for each series: its name, and the number to add
--
-- {1} or, for an hour that is too far ahead, {0}
local begins = tonumber(ARGV[1])
if begins > redis.call('TIME')[1] + ARGV[3] then
  return {0}
end
for i = 4, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIREAT', KEYS[1], begins + 3600 + ARGV[2])
return {1}
