-- In front of a script that grants and is not called often; `turn.lua` has the same without functions. A waiter's entry in
-- the queue is its value: the owner in the first 36 characters, the channel of its process in the 16 after the blank.

-- The next token. A new counter starts at the clock and gains one a grant, so it stays behind the clock, and one
-- that starts anew, after its day or after a loss of data, starts above it.
local function next_token(fence)
  local token = redis.call('INCR', fence)
  if token > 1 then return token end
  local time = redis.call('TIME')
  token = time[1] * 1000000 + time[2]
  redis.call('SET', fence, string.format('%.0f', token), 'PX', '86400000')
  return token
end

-- Hands the lock to the first waiter that can be reached, for a short term that it has to renew, and returns its
-- value and token; nothing if nobody waits. The caller itself, if it is in the queue, needs no message.
local function pass_on(lock, fence, queue, term, caller)
  local head = redis.call('LPOP', queue)
  while head do
    local token = next_token(fence)
    if head == caller then return head, token end
    local grant = 'granted ' .. string.sub(head, 1, 36) .. ' ' .. string.format('%.0f', token)
    if redis.call('PUBLISH', string.sub(head, 38, 53), grant) > 0 then
      redis.call('SET', lock, head, 'PX', term)
      return head, token
    end
    head = redis.call('LPOP', queue)
  end
end

