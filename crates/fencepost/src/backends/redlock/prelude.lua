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

-- The counter after a grant: one more than ever before, and near the clock. That keeps nodes in step, and keeps a node that
-- has lost its counter above what it once confirmed. The proposal comes from the caller's clock, and can move the counter
-- by no more than the bound away from this node's.
local function next_counter(fence, proposal, bound)
  local counter, text = tonumber(proposal), proposal
  bound = tonumber(bound)
  if counter > now + bound then counter = now + bound elseif counter < now - bound then counter = now - bound end
  if counter ~= tonumber(text) then text = string.format('%.0f', counter) end
  -- Mostly the clock is ahead of the counter, so that one command reads and raises it. Nobody sees what it is in between.
  local before = redis.call('SET', fence, text, 'PX', '86400000', 'GET')
  if before and before + 1 > counter then
    counter = before + 1
    redis.call('SET', fence, string.format('%.0f', counter), 'PX', '86400000')
  end
  return counter
end

