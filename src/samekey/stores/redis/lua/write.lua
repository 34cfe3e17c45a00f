-- Write what the caller computed, if the record is still the very one it was computed from.
--
-- KEYS  record, unsettled, audit; the latter where they are touched
-- ARGV  1 in fixed places: version, token and attempt that the record must still have (58 bytes); the span of time
--         for which the caller's decision holds, from <= now < before (16 + 16, microseconds); the new version (10),
--         the new attempt (32), the least new token, or zero to keep it (16); '1' to tell those who wait, or '0';
--         when it may be forgotten (17): '-' never, '+' so many microseconds from now, '@' at that time;
--         and in the set of unsettled keys (17): '=' as it is, '-' no longer, '+' from now on with this score
--         (zero: made anew); then what the channel of those who wait has after the key: messages know no databases
--       2 the new body, or '' to delete the record
--       3 the entry for the audit log, if there is one
--
-- {now}                it is gone
-- {now, record}        it is another by now, or the time is: nothing is written
-- {now, false, token}  written
local TOLD_MAX = 65536  -- bytes: a bigger record is read by those who want it, not sent to all who wait
local sub, format = string.sub, string.format
local time = redis.call('TIME')
local now = time[1] .. sub('00000' .. time[2], -6)
local key = KEYS[1]
local head, micros = ARGV[1], tonumber(now)
-- Of the record only what is compared: the whole of it is copied where somebody is to see it.
if redis.call('GETRANGE', key, 2, 59) ~= sub(head, 1, 58) -- somebody wrote since
  or micros < tonumber(sub(head, 59, 74))                 -- a lease lives after all
  or micros >= tonumber(sub(head, 75, 90))                -- a lease ended
then
  local found = redis.call('GET', key)
  return found and {now, found} or {now}
end

local token, least = sub(head, 11, 26), tonumber(sub(head, 133, 148))
if least > 0 then
  -- The clock may have been set back: a token grows all the same.
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
    local ends = tonumber(sub(head, 151, 166))
    if how == '+' then
      ends = micros + ends
    end
    -- Redis forgets after this millisecond, never before it.
    redis.call('SET', key, value, 'PXAT', math.max(1, math.floor(ends / 1000)))
  end
end
local index = sub(head, 167, 167)
if index == '-' then
  redis.call('ZREM', KEYS[2], sub(key, -32))
elseif index == '+' then
  local score = sub(head, 168, 183)
  redis.call('ZADD', KEYS[2], score == '0000000000000000' and now or score, sub(key, -32))
end
if ARGV[3] then
  redis.call('RPUSH', KEYS[3], now .. ARGV[3])
end
if sub(head, 149, 149) == '1' then
  -- A hint: it is written, whether this user may tell anyone or not.
  redis.pcall('PUBLISH', key .. sub(head, 184), #value <= TOLD_MAX and value or '')
end
return {now, false, token}
