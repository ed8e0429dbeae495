-- Takes over a detached lock: renews it if it still has this owner. Never shortens it.
-- KEYS  1 lock
-- ARGV  1 owner   2 ttl ms
-- Reply: the value, or the value found instead (empty if none) in a list
local holder = redis.call('GET', KEYS[1])
if not holder or string.sub(holder, 1, 36) ~= ARGV[1] then return {holder or ''} end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return holder
