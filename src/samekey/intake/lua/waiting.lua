-- The ids of waiting entries on one side of a time, nearest first; dead letters are among them.
--
-- KEYS  all, dead
-- ARGV  'before' or 'after', microseconds or '', count
local found = {}
for _, key in ipairs(KEYS) do
  local ids
  if ARGV[1] == 'before' then
    ids = redis.call('ZREVRANGEBYSCORE', key, ARGV[2] == '' and '+inf' or ARGV[2], '-inf', 'LIMIT', 0, ARGV[3])
  else
    ids = redis.call('ZRANGEBYSCORE', key, ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
  end
  for _, id in ipairs(ids) do
    found[#found + 1] = id
  end
end
return found
