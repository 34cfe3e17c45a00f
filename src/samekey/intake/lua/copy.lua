-- Change the copy of a key's generation. `mark` comes before the database is raised, `write` after it.
--
-- KEYS  copy
-- ARGV  'mark' or 'write' or 'fill', digest, token, generation:secret
local now = redis.call('HGET', KEYS[1], ARGV[2])
local marked = now and string.sub(now, 1, 1) == '?'
if ARGV[1] == 'mark' then
  if marked and now ~= '?' .. ARGV[3] then
    redis.call('HSET', KEYS[1], ARGV[2], '?*')    -- two raises at once: it stays unknown until the filter is loaded again
  else
    redis.call('HSET', KEYS[1], ARGV[2], '?' .. ARGV[3])
  end
  return 1
end
if marked and (ARGV[1] == 'fill' or now ~= '?' .. ARGV[3]) then
  return 0    -- the mark of another raise
end
local generation = tonumber(string.match(ARGV[4], '^%d+'))
if now and not marked and tonumber(string.match(now, '^%d+')) >= generation then
  return 0    -- only upwards
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return 1
