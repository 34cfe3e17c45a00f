-- Remove keys from the set of unsettled ones whose record is gone: a claim of Repeatable that ended by itself.
-- KEYS  unsettled, record...
--
-- how many were removed
local removed = 0
for i = 2, #KEYS do
  if redis.call('GETRANGE', KEYS[i], 0, 0) == '' then
    removed = removed + redis.call('ZREM', KEYS[1], string.sub(KEYS[i], -32))
  end
end
return removed
