-- Takes this node's lock key away from its holder and tells it why. The key becomes the revocation's own: it is granted
-- like a lock, with a counter above the holder's, and is confirmed like one.
-- KEYS  1 lock   2 fence   3 node
-- ARGV  1 value of the holder, without an earlier revocation   2 value of the revocation   3 ttl ms where the key is free
--       4 proposal us   5 what the node key must be   6 not after, us   7 bound of the proposal, us
--       8 channel of the holder   9 message to it
-- Reply: as acquire.lua
local node = redis.call('GET', KEYS[3])
if node ~= ARGV[5] then return {'NODE', node or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[6]) then return {'LATE', now} end
local holder = redis.call('GET', KEYS[1])
local victims = holder == ARGV[1] or holder and string.sub(holder, 1, #ARGV[1] + 2) == '!' .. ARGV[1] .. '\n'
if holder and (not victims or holder == ARGV[2]) then
  local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
  if holder == ARGV[2] then return counter end
  return {'HELD', holder, redis.call('PTTL', KEYS[1]), counter, now}
end
local counter = next_counter(KEYS[2], ARGV[4], ARGV[7], now)
if holder then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  redis.call('PUBLISH', ARGV[8], ARGV[9])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return counter
