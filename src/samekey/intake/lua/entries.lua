-- Several entries with their logs.
--
-- KEYS  entry, log, entry, log, ...
-- for each: {blob, accepted, fence, reason or '', operation, ...} or {}
local found = {}
for at = 1, #KEYS, 2 do
  local entry = redis.call('HMGET', KEYS[at], 'blob', 'accepted', 'fence', 'dead')
  if entry[1] then
    found[#found + 1] = {entry[1], entry[2], entry[3], entry[4] or '', unpack(redis.call('LRANGE', KEYS[at + 1], 0, -1))}
  else
    found[#found + 1] = {}
  end
end
return found
