-- Compare what the caller knows of the store with what it is: a marker for each bucket of keys, "born run-id lost".
-- If a marker is gone or was made anew since the caller saw it, the store may have lost claims at that time.
--
-- KEYS  markers
-- ARGV  1 the run id of this server   2 '1' if a restart of this server loses nothing
--       3.. for each marker: when it was born as far as the caller knows, or ''
--
-- {now, marker...}
local NEVER = '0000000000000000'
local time = redis.call('TIME')
local now = string.format('%s%06d', time[1], time[2])
local reply = {now}
for i, key in ipairs(KEYS) do
  local known = ARGV[i + 2]
  local marker = redis.call('GET', key)
  local born, run, lost
  if marker then
    born, run, lost = string.match(marker, '^(%d+) (%S+) (%d+)$')
  end
  if not born then
    born, run, lost = now, ARGV[1], known ~= '' and now or NEVER        -- wiped since the caller saw it, or new
  else
    if run ~= ARGV[1] then                                              -- restarted, or another server
      run = ARGV[1]
      if ARGV[2] ~= '1' then
        lost = now
      end
    end
    if known ~= '' and known ~= born and lost < born then               -- wiped, and another client came first
      lost = known < born and born or now
    end
  end
  local current = born .. ' ' .. run .. ' ' .. lost
  if current ~= marker then
    redis.call('SET', key, current)
  end
  reply[i + 1] = current
end
return reply
