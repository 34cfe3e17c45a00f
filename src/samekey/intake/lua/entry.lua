-- One entry with its log.
--
-- KEYS  entry, log
-- {blob, accepted, fence, operation, ...} or {}
local entry = redis.call('HMGET', KEYS[1], 'blob', 'accepted', 'fence')
if not entry[1] then
  return {}
end
return {entry[1], entry[2], entry[3], unpack(redis.call('LRANGE', KEYS[2], 0, -1))}
