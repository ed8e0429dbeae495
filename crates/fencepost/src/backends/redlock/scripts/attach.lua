-- Moves a lock from one value to another, for a client that takes over a detached lock under an identity of
-- its own. Never makes the lock anew and never shortens it.
-- KEYS  1 node   2 lock   3 fence
-- ARGV  1 what the node key must be   2 not after, us   3 value that it has   4 value that it gets   5 ttl ms
-- Reply: the counter if the lock has the new value; or the value found instead (empty if none) in a list
local holder = redis.call('GET', KEYS[2])
if holder == ARGV[3] then
  redis.call('SET', KEYS[2], ARGV[4], 'KEEPTTL')
elseif holder ~= ARGV[4] then
  return {holder or ''}
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[2], ARGV[5]) end
return tonumber(redis.call('GET', KEYS[3]) or '0')
