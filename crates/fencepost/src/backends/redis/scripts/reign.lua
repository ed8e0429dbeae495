-- In front of ops.lua, over a link to a master that Sentinel names: may this server grant a lock?
-- KEYS  at the end: reign
-- ARGV  at the end: the reign that the link has met, and the end of its quarantine, us
--
-- Asked where a grant is at hand, and nowhere else. If the reign is another one, or the server has not been
-- master ever since, nothing is granted, and the link is of no use: `REIGN`. In quarantine nothing is granted
-- either. A waiter queues and is told the reign as the VALUE, and the time left; what cannot queue is told
-- `QUARANTINE` and the time left in ms.
local call, sub, now = redis.call, string.sub, nil
local until_us, met, reign = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
local may, refused, left
local function may_grant()
  if may == nil then
    local time = call('TIME')
    now = time[1] .. sub('00000' .. time[2], -6)
    if call('GET', reign) ~= met
      or not string.find(call('INFO', 'replication'), 'master_replid:' .. sub(met, 42, 81), 1, true) then
      may, refused = false, {err = 'REIGN the master has changed'}
    else
      may = now >= until_us
      left = math.ceil((until_us - now) / 1000)
      refused = not may and {err = 'QUARANTINE ' .. string.format('%.0f', left)}
    end
  end
  return may
end
