-- Load the filter of known keys, piece by piece, and keep its lease.
--
-- KEYS  ready, lease, known
-- ARGV  'ask', incarnation                      the time in milliseconds, before unlisted keys are read
--       'begin', incarnation                    forget another incarnation's; from now on triggers list their keys
--       'add', incarnation, positions           of keys in the database
--       'done', incarnation                     everything is listed; the lease comes with the next renewal
--       'renew', incarnation, until             every key written without Redis before the time asked for is listed
-- 1, or 0 where there is no filter of this incarnation
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] == 'ask' then
  return now
end
local ready = redis.call('GET', KEYS[1])
if ARGV[1] == 'begin' then
  if ready ~= 'L' .. ARGV[2] then
    redis.call('DEL', KEYS[2], KEYS[3])
    redis.call('SET', KEYS[1], 'L' .. ARGV[2])
  end
  return 1
end
if ready ~= 'R' .. ARGV[2] and (ARGV[1] == 'renew' or ready ~= 'L' .. ARGV[2]) then
  return 0
end
if ARGV[1] == 'add' then
  for at = 3, #ARGV do
    redis.call('SETBIT', KEYS[3], ARGV[at], 1)
  end
elseif ARGV[1] == 'done' then
  redis.call('SET', KEYS[1], 'R' .. ARGV[2])
else
  local left = tonumber(ARGV[3]) - now
  if left > 0 and left > redis.call('PTTL', KEYS[2]) then    -- a slow drainer does not shorten the lease of another one
    redis.call('SET', KEYS[2], '1', 'PX', left)
  end
end
return 1
