-- Ask the gate; where it diverts, accept the run. One command, so no generation moves and no gate closes in between.
--
-- KEYS  gate, all, queue, copy, entry, ready, lease, known
-- ARGV  mode, interval, window, hold, depth_max, id, digest or '', generation, blob, incarnation,
--       then, for a run that must be unique, its positions in the filter of known keys
--
-- {'passed'} {'accepted', accepted} {'exists', blob, accepted} {'moved'} {'full'} {'unsure'}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local mode, interval, window, hold = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if ARGV[11] then
  local ready, fresh = redis.call('GET', KEYS[6]), 0
  if ready == 'L' .. ARGV[10] or ready == 'R' .. ARGV[10] then
    for at = 11, #ARGV do
      if redis.call('SETBIT', KEYS[8], ARGV[at], 1) == 0 then
        fresh = 1
      end
    end
  end
  if fresh == 0 or string.sub(ready, 1, 1) == 'L' or redis.call('EXISTS', KEYS[7]) == 0 then
    return {'unsure'}
  end
end

local there = redis.call('HMGET', KEYS[5], 'blob', 'accepted')
if there[1] then
  return {'exists', there[1], there[2]}
end
if ARGV[7] ~= '' then
  local copy = redis.call('HGET', KEYS[4], ARGV[7])
  if copy and string.sub(copy, 1, 1) == '?' then
    return {'passed'}    -- the key is being raised: only the database knows its generation
  end
  if copy and tonumber(string.match(copy, '^%d+')) > tonumber(ARGV[8]) then
    return {'moved'}    -- the key was raised
  end
end

-- gate.decide, line by line
local depth = redis.call('ZCARD', KEYS[2])
local diverted = mode == 'divert'
if mode == 'on' or mode == 'shadow' then
  local gate = redis.call('HMGET', KEYS[1], 'arrival', 'held_until')
  local arrival = math.max(tonumber(gate[1] or '0'), now)
  local held_until = tonumber(gate[2] or '0')
  if arrival - now > window - interval then
    held_until = math.max(held_until, now + hold)
  end
  arrival = math.min(arrival + interval, now + window)
  redis.call('HSET', KEYS[1], 'arrival', string.format('%.0f', arrival), 'held_until', string.format('%.0f', held_until))
  diverted = (now < held_until or depth > 0) and mode == 'on'
end
if not diverted then
  return {'passed'}
end
if depth >= tonumber(ARGV[5]) then
  return {'full'}
end

local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
local accepted = now
if last[2] and tonumber(last[2]) >= accepted then
  accepted = tonumber(last[2]) + 1    -- no two entries have the same time, so it is their order too
end
local text = string.format('%.0f', accepted)
redis.call('HSET', KEYS[5], 'blob', ARGV[9], 'accepted', text, 'fence', '0')
redis.call('ZADD', KEYS[2], text, ARGV[6])
redis.call('ZADD', KEYS[3], text, ARGV[6])
return {'accepted', text}
