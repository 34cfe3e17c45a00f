-- What the front has for a key, and its clock; a mark where it has nothing.
-- KEYS  word
-- ARGV  for how many milliseconds to leave a mark, or '' for none
--
-- {now, word}  or  {now, false}
local time = redis.call('TIME')
local now = string.format('%s%06d', time[1], time[2])
local word = redis.call('GET', KEYS[1])
if not word and ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
return {now, word}
