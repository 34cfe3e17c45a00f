-- Write a word over an older one, and tell those who wait.
-- KEYS  word
-- ARGV  1 the word   2 how many of its bytes are its order   3 until when it may be believed, in microseconds
--       4 the channel of those who wait
--
-- {now}
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = string.format('%016.0f', micros)
local there = redis.call('GET', KEYS[1])
local newer = not there or there == ''
if not newer then
  -- Byte by byte: comparing strings goes by the server's locale.
  for i = 1, tonumber(ARGV[2]) do
    local old, new = string.byte(there, i) or 0, string.byte(ARGV[1], i)
    if old ~= new then
      newer = new > old
      break
    end
  end
end
if newer and tonumber(ARGV[3]) > micros then
  redis.call('SET', KEYS[1], ARGV[1], 'PXAT', string.format('%.0f', math.floor(tonumber(ARGV[3]) / 1000)))
elseif newer then
  redis.call('DEL', KEYS[1])    -- told too late to be believed; what it replaces is older still
end
redis.pcall('PUBLISH', ARGV[4], '')    -- a hint, also from a user that may tell nobody
return {now}
