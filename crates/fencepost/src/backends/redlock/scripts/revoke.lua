-- Takes this node's lock key away from its holder and tells it why. The key becomes the revocation's own: it
-- is granted like a lock, with a counter above the holder's, and is confirmed like one.
-- KEYS  1 node   2 lock   3 fence
-- ARGV  1 what the node key must be   2 not after, us   3 value of the holder, without an earlier revocation
--       4 value of the revocation   5 ttl ms where the key is free   6 proposal us   7 bound of it, us
--       8 channel of the holder   9 message to it
-- Reply: as to take a lock in ops.lua
local holder = redis.call('GET', KEYS[2])
local victims = holder == ARGV[3]
  or holder and string.sub(holder, 1, #ARGV[3] + 2) == '!' .. ARGV[3] .. '\n'
if holder and (not victims or holder == ARGV[4]) then
  local counter = tonumber(redis.call('GET', KEYS[3]) or '0')
  if holder == ARGV[4] then return counter end
  return {'HELD', holder, redis.call('PTTL', KEYS[2]), counter, now}
end
-- As after a grant in ops.lua.
local counter, near, bound = redis.call('INCR', KEYS[3]), tonumber(ARGV[6]), tonumber(ARGV[7])
if near > now + bound then near = now + bound elseif near < now - bound then near = now - bound end
if near > counter + bound / 5 then
  counter = near
  redis.call('SET', KEYS[3], string.format('%.0f', counter), 'PX', '86400000')
end
if holder then
  redis.call('SET', KEYS[2], ARGV[4], 'KEEPTTL')
  redis.call('PUBLISH', ARGV[8], ARGV[9])
else
  redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
end
return counter
