-- Takes this node's lock key if it is free, and says what the counter stands at then.
-- KEYS  1 node   2 lock   3 fence   4 queue
-- ARGV  1 what the node key must be   2 not after, us   3 value of the caller   4 ttl ms   5 proposal us
--       6 how far the proposal may be from this node's clock, us   7 a waiter's entry in the queue, or nothing
-- Reply: the counter, if the key is the caller's
--        {'HELD', value of the holder, its ttl ms, the counter, the clock} if it is somebody else's
if redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4]) then
  local counter = next_counter(KEYS[3], ARGV[5], ARGV[6])
  if ARGV[7] then redis.call('LREM', KEYS[4], 1, ARGV[7]) end
  return counter
end
local holder = redis.call('GET', KEYS[2])
if holder == ARGV[3] then
  -- The same request, delivered twice. Never shortens the lock.
  if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
  return tonumber(redis.call('GET', KEYS[3]) or '0')
end
if ARGV[7] then
  if not redis.call('LPOS', KEYS[4], ARGV[7]) then redis.call('RPUSH', KEYS[4], ARGV[7]) end
  redis.call('PEXPIRE', KEYS[4], '60000')
end
return {'HELD', holder, redis.call('PTTL', KEYS[2]), tonumber(redis.call('GET', KEYS[3]) or '0'), now}
