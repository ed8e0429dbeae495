-- Takes over a detached lock: renews it if it still has this owner, and if nobody had it in between. Never makes it
-- anew and never shortens it.
-- KEYS  1 node   2 lock   3 fence
-- ARGV  1 what the node key must be   2 not after, us   3 owner   4 ttl ms   5 token
-- Reply: the value; or the value found instead (empty if none) in a list
local holder = redis.call('GET', KEYS[2])
if not holder or string.sub(holder, 1, 36) ~= ARGV[3] then return {holder or ''} end
local counter = tonumber(redis.call('GET', KEYS[3]) or '0')
if counter > tonumber(ARGV[5]) then return {''} end
if counter < tonumber(ARGV[5]) then redis.call('SET', KEYS[3], ARGV[5], 'PX', '86400000') end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
return holder
