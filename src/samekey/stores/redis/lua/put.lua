-- Write an entry over an older one, and wake the waiters.
-- KEYS  entry
-- ARGV  1 the entry   2 how many of its bytes are its order   3 until when it is valid, in microseconds
--       4 the channel of the waiters
--
-- {now}
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = string.format('%016.0f', micros)
local current = redis.call('GET', KEYS[1])
local newer = not current or current == ''
if not newer then
  -- Byte by byte: Lua compares strings by the server's locale.
  for i = 1, tonumber(ARGV[2]) do
    local old, new = string.byte(current, i) or 0, string.byte(ARGV[1], i)
    if old ~= new then
      newer = new > old
      break
    end
  end
end
if newer and tonumber(ARGV[3]) > micros then
  redis.call('SET', KEYS[1], ARGV[1], 'PXAT', string.format('%.0f', math.floor(tonumber(ARGV[3]) / 1000)))
elseif newer then
  redis.call('DEL', KEYS[1])    -- it is no longer valid, and the entry that it replaces is older still
end
redis.pcall('PUBLISH', ARGV[4], '')    -- only a hint: the user may lack the right to publish
return {now}
