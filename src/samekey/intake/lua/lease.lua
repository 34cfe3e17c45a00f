-- Lease the oldest entries, or one. Leases that have ended are given back first, at their old places.
--
-- KEYS  queue, leased, all; with an id also its entry
-- ARGV  count, lease in microseconds, id or ''
-- the ids, in their order
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, 1000)) do
  local accepted = redis.call('ZSCORE', KEYS[3], id)
  if accepted then
    redis.call('ZADD', KEYS[1], accepted, id)
  end
  redis.call('ZREM', KEYS[2], id)
end
local ids = {}
if ARGV[3] == '' then
  ids = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)
elseif redis.call('ZSCORE', KEYS[1], ARGV[3]) then
  ids = {ARGV[3]}
end
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
for _, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], ends, id)
end
return ids
