-- Takes the lock if it is free; with `wait`, stands in the queue if it is not.
-- KEYS  1 lock   2 fence   3 queue
-- ARGV  1 value of the caller   2 ttl ms   3 `try` or `wait`   4 term ms of a grant by push
-- Reply: the token, if the caller has the lock now
--        {value of the holder, its ttl ms, the counter, the caller's place in the queue} if not
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if ARGV[3] == 'try' or redis.call('EXISTS', KEYS[3]) == 0 then return next_token(KEYS[2]) end
  -- Free, but others came earlier: the lock ended without a release.
  if not redis.call('LPOS', KEYS[3], ARGV[1]) then redis.call('RPUSH', KEYS[3], ARGV[1]) end
  local head, token = pass_on(KEYS[1], KEYS[2], KEYS[3], ARGV[4], ARGV[1])
  if head == ARGV[1] then return token end
end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  -- Granted by a push that did not arrive.
  local token = redis.call('GET', KEYS[2])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return token and tonumber(token) or next_token(KEYS[2])
end
local place = 0
if ARGV[3] == 'wait' then
  place = redis.call('LPOS', KEYS[3], ARGV[1]) or redis.call('RPUSH', KEYS[3], ARGV[1]) - 1
  redis.call('PEXPIRE', KEYS[3], '60000')
end
return {holder, redis.call('PTTL', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or '-1'), place}
