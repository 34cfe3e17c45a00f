-- Read the front's entry for a key, and the server's clock. Leave a mark if there is no entry.
-- KEYS  entry
-- ARGV  for how many milliseconds to leave a mark, or '' for none
--
-- {now, entry}  or  {now, false}
local time = redis.call('TIME')
local now = string.format('%s%06d', time[1], time[2])
local entry = redis.call('GET', KEYS[1])
if not entry and ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
return {now, entry}
