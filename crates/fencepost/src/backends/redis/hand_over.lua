-- Hands the lock from its holder to a waiter of the same process, unless it is another process's turn.
-- KEYS  1 lock   2 fence   3 queue
-- ARGV  1 value of the holder   2 value of the successor   3 ttl ms of the successor
--       4 how often the lock may still stay in this process while others queue   5 term ms of a grant by push
-- Reply: the successor's token; 0 if the lock was not the holder's; -1 if another process has it now and the
--        successor stands in the queue
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  if not holder or string.sub(holder, 1, #ARGV[1] + 2) ~= '!' .. ARGV[1] .. '\n' then return 0 end
end
redis.call('LREM', KEYS[3], 1, ARGV[2])
if ARGV[4] == '0' and pass_on(KEYS[1], KEYS[2], KEYS[3], ARGV[5]) then
  redis.call('RPUSH', KEYS[3], ARGV[2])
  redis.call('PEXPIRE', KEYS[3], '60000')
  return -1
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return next_token(KEYS[2])
