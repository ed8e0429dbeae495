-- In front of the scripts that grant: the counter after a grant. One more than ever before, and near the clock. That
-- keeps nodes in step, and keeps a node that has lost its counter above what it once confirmed. The proposal comes from the
-- caller's clock, and can move the counter by no more than the bound away from this node's.
local function next_counter(fence, proposal, bound, now)
  local counter = (redis.call('GET', fence) or 0) + 1
  proposal, bound = tonumber(proposal), tonumber(bound)
  if proposal > now + bound then proposal = now + bound elseif proposal < now - bound then proposal = now - bound end
  if proposal > counter then counter = proposal end
  redis.call('SET', fence, string.format('%.0f', counter), 'PX', '86400000')
  return counter
end

