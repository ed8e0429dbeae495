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

