-- The entries are in the database: delete each that has no newer operation, under its fence.
--
-- KEYS  queue, leased, all, then entry and log of each
-- ARGV  id, fence, seen of each
-- for each: 1 (gone), 0 (another drainer has it, or it was gone), or the entry as it is now
local done = {}
for at = 1, #ARGV, 3 do
  local key = 4 + (at - 1) / 3 * 2
  local entry = redis.call('HMGET', KEYS[key], 'blob', 'accepted', 'fence')
  if entry[3] ~= ARGV[at + 1] then
    done[#done + 1] = 0
  elseif redis.call('LLEN', KEYS[key + 1]) ~= tonumber(ARGV[at + 2]) then
    done[#done + 1] = {entry[1], entry[2], entry[3], unpack(redis.call('LRANGE', KEYS[key + 1], 0, -1))}
  else
    redis.call('DEL', KEYS[key], KEYS[key + 1])
    redis.call('ZREM', KEYS[1], ARGV[at])
    redis.call('ZREM', KEYS[2], ARGV[at])
    redis.call('ZREM', KEYS[3], ARGV[at])
    done[#done + 1] = 1
  end
end
return done
