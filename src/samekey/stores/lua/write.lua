-- Write what the caller computed, if the record is still the very one it was computed from.
--
-- KEYS  record, unsettled, audit; the latter where they are touched
-- ARGV  1 version, token and attempt that the record must still have
--       2 3 the span of time for which the caller's decision holds, in microseconds: from <= now < before
--       4 the new version   5 the new attempt   6 the least new token, or '' to keep it
--       7 the new body, or '' to delete the record
--       8 when it may be forgotten: '' never, '+n' microseconds from now, 'n' at that time
--       9 in the set of unsettled keys: '' as it is, '-' no longer, 'n' from now on with this score ('now': made anew)
--      10 '1' to tell those who wait
--      11 the entry for the audit log, or ''
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
if string.sub(found, 3, 60) ~= ARGV[1]                            -- somebody wrote since
  or micros < tonumber(ARGV[2]) or micros >= tonumber(ARGV[3])    -- a lease ended, or lives after all
then
  return {now, found}
end

local token = string.sub(ARGV[1], 11, 26)
if ARGV[6] ~= '' then
  -- The clock may have been set back: a token grows all the same.
  token = string.format('%016.0f', math.max(micros, tonumber(ARGV[6])))
end

local value = ''
if ARGV[7] == '' then
  redis.call('DEL', KEYS[1])
else
  value = 'k1' .. ARGV[4] .. token .. ARGV[5] .. now .. ARGV[7]
  if ARGV[8] == '' then
    redis.call('SET', KEYS[1], value)
  else
    local ends = tonumber(ARGV[8])
    if string.sub(ARGV[8], 1, 1) == '+' then
      ends = micros + ends
    end
    -- Redis forgets after this millisecond, never before it.
    redis.call('SET', KEYS[1], value, 'PXAT', string.format('%.0f', math.max(1, math.floor(ends / 1000))))
  end
end
if ARGV[9] == '-' then
  redis.call('ZREM', KEYS[2], string.sub(KEYS[1], -32))
elseif ARGV[9] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[9] == 'now' and now or ARGV[9], string.sub(KEYS[1], -32))
end
if ARGV[11] ~= '' then
  redis.call('RPUSH', KEYS[3], now .. ARGV[11])
end
if ARGV[10] == '1' then
  redis.call('PUBLISH', KEYS[1], #value <= TOLD_MAX and now .. value or now)
end
return {now, false, token}
