-- Gives the lock back and hands it to the first waiter that can be reached.
-- KEYS  1 lock   2 fence   3 queue
-- ARGV  1 value of the caller   2 term ms of a grant by push   3 `leave`: also leave the queue
-- Reply: 1 if the lock was the caller's, 0 if not
if ARGV[3] == 'leave' then redis.call('LREM', KEYS[3], 1, ARGV[1]) end
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  -- A revoked lock has `!` in front and the reason behind; giving it back is the acknowledgement.
  if not holder or string.sub(holder, 1, #ARGV[1] + 2) ~= '!' .. ARGV[1] .. '\n' then return 0 end
end
if not pass_on(KEYS[1], KEYS[2], KEYS[3], ARGV[2]) then redis.call('DEL', KEYS[1]) end
return 1
