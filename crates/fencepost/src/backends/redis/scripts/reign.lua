-- In front of ops.lua, over a link to a master that Sentinel names: may this server grant a lock?
-- KEYS  at the end: reign
-- ARGV  at the end: the reign that the link has met; `UNTIL COUNT LAG`: the end of its quarantine in us, and
--       how many replicas must have been heard of within so many seconds, if the server wants any at all
--
-- Asked where a grant is at hand. If the reign is another one, or the server has not been master ever since,
-- nothing is granted, and the link is of no use: `REIGN`. In quarantine nothing is granted either. A waiter
-- queues and is told the reign as the VALUE, and the time left; what cannot queue is told `QUARANTINE` and
-- the time left in ms. A server that has been left alone neither grants nor lengthens: `NOREPLICAS`. It would
-- say so by itself, but only once its own clock has looked, and before 7.0 not to scripts.
local call, sub, now = redis.call, string.sub, nil
local terms, met, reign = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
local info, may, refused, left
local ALONE = {err = 'NOREPLICAS not enough replicas have been heard of lately'}
local function alone()
  info = info or call('INFO', 'replication')
  if not string.find(info, 'min_slaves_good_slaves', 1, true) then return false end
  local count, lag = string.match(terms, ' (%d+) (%d+)')
  count, lag = tonumber(count), tonumber(lag)
  for late in string.gmatch(info, 'state=online,offset=%d+,lag=(%d+)') do
    if tonumber(late) <= lag then count = count - 1 end
  end
  return count > 0
end
local function may_grant()
  if may == nil then
    local time = call('TIME')
    now = time[1] .. sub('00000' .. time[2], -6)
    local ends = string.match(terms, '%d+')
    may = now >= ends
    if alone() then
      may, refused = false, ALONE
    elseif call('GET', reign) ~= met
      or not string.find(info, 'master_replid:' .. sub(met, 42, 81), 1, true) then
      may, refused = false, {err = 'REIGN the master has changed'}
    elseif not may then
      left = math.ceil((ends - now) / 1000)
      refused = {err = 'QUARANTINE ' .. string.format('%.0f', left)}
    end
  end
  return may
end
