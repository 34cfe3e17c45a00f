-- What the copy knows about a key, and whether a run may have it. One command.
--
-- KEYS  ready, lease, copy, known
-- ARGV  ready as this caller's connection expects it (incarnation), digest, positions in the filter of known keys
--
-- {generation:secret or "", fresh, listed}; "" means unknown here: read the database
local ready = redis.call('GET', KEYS[1])
local copy = redis.call('HGET', KEYS[3], ARGV[2])
if ready ~= 'L' .. ARGV[1] and ready ~= 'R' .. ARGV[1] then
  return {'', 0, 0}    -- no filter, or one of another incarnation, which may have lost its last bits
end
local fresh = 0
for at = 3, #ARGV do
  if redis.call('SETBIT', KEYS[4], ARGV[at], 1) == 0 then
    fresh = 1
  end
end
if copy and string.sub(copy, 1, 1) == '?' then
  return {'', 0, 1}    -- the key is being raised
end
if string.sub(ready, 1, 1) == 'L' or redis.call('EXISTS', KEYS[2]) == 0 then
  return {'', 0, 1}    -- the filter is being loaded, or no drainer has looked for unlisted keys lately
end
return {copy or '0:1', fresh, 1}
