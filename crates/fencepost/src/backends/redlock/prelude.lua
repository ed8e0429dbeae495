-- In front of the scripts that make or keep a lock: does this node vote, and is it not too late?
-- KEYS  1 node
-- ARGV  1 what the node key must be   2 not after, us
-- Reply: {'NODE', the node key} if this node does not vote in this deployment now
--        {'LATE', the clock} if the request comes too late
local node = redis.call('GET', KEYS[1])
if node ~= ARGV[1] then return {'NODE', node or ''} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[2]) then return {'LATE', now} end

-- The counter after a grant: one more than ever before. Where that is behind the proposal by more than a fifth of the bound
-- it leaps there: that keeps nodes in step, and a node that has lost its counter above what it once confirmed. The proposal comes
-- from the caller's clock, and can move the counter by no more than the bound away from this node's.
local function next_counter(fence, proposal, bound)
  local counter, near = redis.call('INCR', fence), tonumber(proposal)
  if near > now + bound then near = now + bound elseif near < now - bound then near = now - bound end
  if near > counter + bound / 5 then
    counter = near
    redis.call('SET', fence, string.format('%.0f', counter), 'PX', '86400000')
  end
  return counter
end

