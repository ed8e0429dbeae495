-- Confirms the token of one lock, extends many, or makes one anew that this node has lost.
-- KEYS  1 node, then for each lock: lock, fence
-- ARGV  1 what the node key must be   2 not after, us   3 `confirm`, `extend` or `mend`
--       then for each lock: value of the caller, ttl ms, token
-- Reply: a list of the clock and, for each lock,
--        1 if it is the caller's: counter and lease are at least what was asked for
--        0 if it is gone
--        2 if the counter has passed the token: the key is not from the grant that the caller knows of
--        the value of the holder if it is somebody else's
--
-- Only `mend` makes a lock anew. Clients send it when a majority has just extended the lock, with a limit no
-- later than the end of the validity. So a lock that was given back or revoked does not come back. A key on a
-- node that does not vote counts for nothing: a server that came back with old data may hold a key that was
-- released or revoked since.
local confirm, mend = ARGV[3] == 'confirm', ARGV[3] == 'mend'
local reply = {now}
for i = 1, (#KEYS - 1) / 2 do
  local lock, fence = KEYS[2 * i], KEYS[2 * i + 1]
  local value, ttl, token = ARGV[3 * i + 1], ARGV[3 * i + 2], tonumber(ARGV[3 * i + 3])
  local holder = redis.pcall('GET', lock)
  local counter = tonumber(redis.call('GET', fence) or '0')
  local verdict = 1
  if holder == value then
    if confirm and counter > token then
      verdict = 2
    elseif redis.call('PTTL', lock) < tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
  elseif holder then
    verdict = type(holder) == 'string' and holder or ''
  elseif not mend then
    verdict = 0
  else
    redis.call('SET', lock, value, 'PX', ttl)
  end
  if verdict == 1 then
    if counter < token then
      redis.call('SET', fence, ARGV[3 * i + 3], 'PX', '86400000')
    else
      redis.call('PEXPIRE', fence, '86400000')
    end
  end
  reply[i + 1] = verdict
end
return reply
