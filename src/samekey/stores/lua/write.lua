-- Write what the caller computed, if the record is still the very one it was computed from.
--
-- KEYS  record, unsettled, audit; the latter where they are touched
-- ARGV  1 in fixed places: version, token and attempt that the record must still have (58 bytes); the span of time
--         for which the caller's decision holds, from <= now < before (16 + 16, microseconds); the new version (10),
--         the new attempt (32), the least new token, or zero to keep it (16)
--       2 the new body, or '' to delete the record
--       3 when it may be forgotten: '' never, '+n' microseconds from now, 'n' at that time
--       4 in the set of unsettled keys: '' as it is, '-' no longer, 'n' from now on with this score ('now': made anew)
--       5 '1' to tell those who wait
--       6 the entry for the audit log, or ''
--
-- {now}                it is gone
-- {now, record}        it is another by now, or the time is: nothing is written
-- {now, false, token}  written
local TOLD_MAX = 65536  -- bytes: a bigger record is read by those who want it, not sent to all who wait
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = string.format('%016.0f', micros)
local found = redis.call('GET', KEYS[1])
if not found then
  return {now}
end
local head = ARGV[1]
if string.sub(found, 3, 60) ~= string.sub(head, 1, 58)            -- somebody wrote since
  or micros < tonumber(string.sub(head, 59, 74))                  -- a lease lives after all
  or micros >= tonumber(string.sub(head, 75, 90))                 -- a lease ended
then
  return {now, found}
end

local token, least = string.sub(head, 11, 26), tonumber(string.sub(head, 133, 148))
if least > 0 then
  -- The clock may have been set back: a token grows all the same.
  token = string.format('%016.0f', math.max(micros, least))
end

local value = ''
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  value = 'k1' .. string.sub(head, 91, 100) .. token .. string.sub(head, 101, 132) .. now .. ARGV[2]
  if ARGV[3] == '' then
    redis.call('SET', KEYS[1], value)
  else
    local ends = tonumber(ARGV[3])
    if string.sub(ARGV[3], 1, 1) == '+' then
      ends = micros + ends
    end
    -- Redis forgets after this millisecond, never before it.
    redis.call('SET', KEYS[1], value, 'PXAT', string.format('%.0f', math.max(1, math.floor(ends / 1000))))
  end
end
if ARGV[4] == '-' then
  redis.call('ZREM', KEYS[2], string.sub(KEYS[1], -32))
elseif ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[4] == 'now' and now or ARGV[4], string.sub(KEYS[1], -32))
end
if ARGV[6] ~= '' then
  redis.call('RPUSH', KEYS[3], now .. ARGV[6])
end
if ARGV[5] == '1' then
  redis.call('PUBLISH', KEYS[1], #value <= TOLD_MAX and now .. value or now)
end
return {now, false, token}
