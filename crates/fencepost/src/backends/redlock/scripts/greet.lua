-- Asks a node, over a new connection, whether it votes, and settles what can be settled.
-- KEYS  1 node
-- ARGV  1 max_ttl ms   2 quarantine ms   3 fingerprint of the members   4 `meet`, `found`, `reform` or `look`
-- Reply: {run id of the server, the node key (empty if there is none), the clock us}
--
-- The node key is `RUN MAX_TTL QUARANTINE MEMBERS` where the node votes. In quarantine two words follow: its
-- end, in microseconds of the node's clock, and the reason. A client that compares the whole text then finds
-- no vote. A server that started anew has another run id: its data may be older than its promises. A node
-- without a node key has lost everything, or is new, or has taken the place of a lost one. However long it
-- has been up, it knows nothing of what was granted there. Only `found`, an operator's word, lets it vote at
-- once.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ours = run .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]

local said = redis.call('GET', KEYS[1])
local old_run, max_ttl, quarantine, members, ready
if said then
  old_run, max_ttl, quarantine, members, ready = string.match(said, '^(%x+) (%d+) (%d+) (%S+) ?(%d*)')
end

-- Votes again after the longest lease that this node can have granted, by its own key or by ours.
local function wait(text, longest, reason)
  local pause = math.max(tonumber(ARGV[2]), tonumber(longest or '0'))
  redis.call('SET', KEYS[1], text .. ' ' .. string.format('%.0f', now + pause * 1000) .. ' ' .. reason)
end

if ARGV[4] == 'found' then
  redis.call('SET', KEYS[1], ours)
elseif ARGV[4] == 'reform' then
  if not said or string.sub(said, 1, #ours) ~= ours then wait(ours, quarantine, 'changed') end
elseif ARGV[4] == 'meet' then
  if not old_run then
    wait(ours, nil, 'new')
  elseif old_run ~= run then
    wait(run .. ' ' .. max_ttl .. ' ' .. quarantine .. ' ' .. members, quarantine, 'restarted')
  elseif ready ~= '' and now >= tonumber(ready) then
    redis.call('SET', KEYS[1], run .. ' ' .. max_ttl .. ' ' .. quarantine .. ' ' .. members)
  end
end
return {run, redis.call('GET', KEYS[1]) or '', now}
