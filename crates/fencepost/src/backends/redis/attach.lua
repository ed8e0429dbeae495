-- Takes over a detached lock, or detaches one: renews it if it still has this identity. Never shortens it.
-- KEYS  1 lock
-- ARGV  1 identity   2 ttl ms   3 value with another identity that it shall have from now on, if any
-- Reply: the value, or the value found instead (empty if none) in a list
local holder = redis.call('GET', KEYS[1])
local identity = holder and string.sub(holder, 1, 36)
-- A repeated request finds what the first one wrote.
if not holder or identity ~= ARGV[1] and identity ~= string.sub(ARGV[3] or '', 1, 36) then return {holder or ''} end
if ARGV[3] then redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL') end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return ARGV[3] or holder
