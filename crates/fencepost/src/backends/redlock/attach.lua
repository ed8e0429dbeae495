-- Takes over a detached lock: renews it if it still has this owner, and if nobody had it in between. Never makes it
-- anew and never shortens it.
-- KEYS  1 lock   2 fence   3 node
-- ARGV  1 owner   2 ttl ms   3 token   4 what the node key must be   5 not after, us
-- Reply: {'NODE', the node key} or {'LATE', the clock} as acquire.lua; or the value; or the value found instead (empty if
--        none) in a list
local node = redis.call('GET', KEYS[3])
if node ~= ARGV[4] then return {'NODE', node or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[5]) then return {'LATE', now} end
local holder = redis.call('GET', KEYS[1])
if not holder or string.sub(holder, 1, 36) ~= ARGV[1] then return {holder or ''} end
local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
if counter > tonumber(ARGV[3]) then return {''} end
if counter < tonumber(ARGV[3]) then redis.call('SET', KEYS[2], ARGV[3], 'PX', '86400000') end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return holder
