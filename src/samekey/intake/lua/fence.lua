-- Read leased entries and give each a new fence: what an earlier drainer does with them is refused from now on.
--
-- KEYS  entry, log, entry, log, ...
-- for each: {blob, accepted, fence, operation, ...} or {}
local found = {}
for at = 1, #KEYS, 2 do
  local entry = redis.call('HMGET', KEYS[at], 'blob', 'accepted')
  if entry[1] then
    local fence = redis.call('HINCRBY', KEYS[at], 'fence', 1)
    found[#found + 1] = {entry[1], entry[2], tostring(fence), unpack(redis.call('LRANGE', KEYS[at + 1], 0, -1))}
  else
    found[#found + 1] = {}
  end
end
return found
