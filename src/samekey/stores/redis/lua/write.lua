-- Write the record that the caller computed, if the stored one is still the version it was computed from.
--
-- KEYS  record, unsettled, audit; the last two only if they are changed
-- ARGV  1 in fixed places: version, token and attempt that the record must still have (58 bytes); the span of time
--         for which the caller's decision holds, from <= now < before (16 + 16, microseconds); the new version (10),
--         the new attempt (32), the least new token, or zero to keep it (16); '1' to publish the record, or '0';
--         the retention (18): '-' none, '+' so many microseconds from now, '@' until that time;
--         the set of unsettled keys (17): '=' unchanged, '-' remove, '+' add with this score (zero: the time of
--         this write); then the suffix of the channel: messages belong to no database, so it names one
--       2 the new body, or '' to delete the record
--       3 the entry for the audit log, if there is one
--
-- {now}                there is no record any more
-- {now, record}        the record or the time no longer fits: nothing is written
-- {now, false, token}  written
local PUBLISHED_MAX = 65536  -- bytes: waiters read a bigger record themselves
local sub, format = string.sub, string.format
local time = redis.call('TIME')
local now = time[1] .. sub('00000' .. time[2], -6)
local key = KEYS[1]
local head, micros = ARGV[1], tonumber(now)
-- Read only the part that is compared. The whole record is copied only if it is returned.
if redis.call('GETRANGE', key, 2, 59) ~= sub(head, 1, 58) -- another command wrote since
  or micros < tonumber(sub(head, 59, 74))                 -- the clock is before a deadline that the caller thought passed
  or micros >= tonumber(sub(head, 75, 90))                -- a deadline passed meanwhile
then
  local found = redis.call('GET', key)
  return found and {now, found} or {now}
end

local token, least = sub(head, 11, 26), tonumber(sub(head, 133, 148))
if least > 0 then
  -- The clock may have been set back: the token must still grow.
  token = format('%016.0f', math.max(micros, least))
end

local value = ''
if ARGV[2] == '' then
  redis.call('DEL', key)
else
  value = 'k1' .. sub(head, 91, 100) .. token .. sub(head, 101, 132) .. now .. ARGV[2]
  local how = sub(head, 150, 150)
  if how == '-' then
    redis.call('SET', key, value)
  else
    local ends = tonumber(sub(head, 151, 167))
    if how == '+' then
      ends = micros + ends
    end
    -- Redis deletes the key after this millisecond, never before it.
    redis.call('SET', key, value, 'PXAT', math.max(1, math.floor(ends / 1000)))
  end
end
local index = sub(head, 168, 168)
if index == '-' then
  redis.call('ZREM', KEYS[2], sub(key, -32))
elseif index == '+' then
  local score = sub(head, 169, 184)
  redis.call('ZADD', KEYS[2], score == '0000000000000000' and now or score, sub(key, -32))
end
if ARGV[3] then
  redis.call('RPUSH', KEYS[3], now .. ARGV[3])
end
if sub(head, 149, 149) == '1' then
  -- Only a hint: the write counts even if this user lacks the right to publish.
  redis.pcall('PUBLISH', key .. sub(head, 185), #value <= PUBLISHED_MAX and value or '')
end
return {now, false, token}
