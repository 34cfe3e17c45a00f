-- The record and the server's clock, read at one moment.
-- KEYS  record
local time = redis.call('TIME')
return {string.format('%s%06d', time[1], time[2]), redis.call('GET', KEYS[1])}
