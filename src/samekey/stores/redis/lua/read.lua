-- Read the record and the server's clock at one moment.
-- KEYS  record
local time = redis.call('TIME')
return {time[1] .. string.sub('00000' .. time[2], -6), redis.call('GET', KEYS[1])}
