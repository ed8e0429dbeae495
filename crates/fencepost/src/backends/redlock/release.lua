-- Gives this node's lock key back and wakes the first waiter that can be reached. A wake-up is a hint.
-- KEYS  1 lock   2 queue
-- ARGV  1 value of the caller   2 a waiter's entry that leaves the queue, empty or nothing   3 `quiet`: wake nobody
-- Reply: 1 if the key was the caller's, 0 if not
if ARGV[2] and ARGV[2] ~= '' then redis.call('LREM', KEYS[2], 1, ARGV[2]) end
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  -- A revoked lock has `!` in front and the reason behind; giving it back is the acknowledgement.
  if not holder or string.sub(holder, 1, #ARGV[1] + 2) ~= '!' .. ARGV[1] .. '\n' then return 0 end
end
redis.call('DEL', KEYS[1])
if not ARGV[3] then
  local entry = redis.call('LPOP', KEYS[2])
  while entry and redis.call('PUBLISH', string.sub(entry, 1, 16), 'free ' .. string.sub(entry, 18) .. ' ') == 0 do
    entry = redis.call('LPOP', KEYS[2])
  end
end
return 1
