-- Takes this node's lock key if it is free, and says what the counter stands at then.
-- KEYS  1 lock   2 fence   3 node   4 queue
-- ARGV  1 value of the caller   2 ttl ms   3 proposal us   4 what the node key must be   5 not after, us
--       6 how far the proposal may be from this node's clock, us   7 a waiter's entry in the queue, or nothing
--       8 `again` if an earlier attempt may have put that entry there, or nothing
-- Reply: the counter, if the key is the caller's
--        {'HELD', value of the holder, its ttl ms, the counter, the clock} if it is somebody else's
--        {'NODE', the node key} if this node does not vote in this deployment now
--        {'LATE', the clock} if the request comes too late
local node = redis.call('GET', KEYS[3])
if node ~= ARGV[4] then return {'NODE', node or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[5]) then return {'LATE', now} end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local counter = next_counter(KEYS[2], ARGV[3], ARGV[6], now)
  if ARGV[8] then redis.call('LREM', KEYS[4], 1, ARGV[7]) end
  return counter
end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  -- The same request, delivered twice. Never shortens the lock.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return tonumber(redis.call('GET', KEYS[2]) or '0')
end
if ARGV[7] then
  if not redis.call('LPOS', KEYS[4], ARGV[7]) then redis.call('RPUSH', KEYS[4], ARGV[7]) end
  redis.call('PEXPIRE', KEYS[4], '60000')
end
return {'HELD', holder, redis.call('PTTL', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or '0'), now}
