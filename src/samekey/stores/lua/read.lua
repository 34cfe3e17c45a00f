-- The record and the server's clock, read at one moment.
-- KEYS  record
local time = redis.call('TIME')
return {string.format('%016.0f', time[1] * 1000000 + time[2]), redis.call('GET', KEYS[1])}
