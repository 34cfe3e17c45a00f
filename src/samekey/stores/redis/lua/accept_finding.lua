-- Replace a finding by the accepted one, if it is still the one that the caller read.
--
-- KEYS  findings (a hash by id), audit
-- ARGV  1 the id   2 the finding as the caller read it   3 the accepted finding   4 the entry for the audit log
--
-- {1, finding} written, or {0, finding} with the one that is there
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found ~= ARGV[2] then
  return {0, found}
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('RPUSH', KEYS[2], time[1] .. string.sub('00000' .. time[2], -6) .. ARGV[4])
return {1, ARGV[3]}
