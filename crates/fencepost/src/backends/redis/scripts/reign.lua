-- In front of ops.lua, over a link to a master that Sentinel names: may it grant a lock, or renew it?
-- KEYS  at the end: reign
-- ARGV  at the end: the reign that the link has met; `SETTLED UNTIL COUNT LAG`: two times of that, and how
--       many replicas must have been heard of within so many seconds, if the server wants any at all
--
-- Asked where a lock is granted or made to last longer. Nothing is if the reign is another one, or the server
-- has not been master ever since: `REIGN`, and the link is of no use. Nor if it has been left alone:
-- `NOREPLICAS`. It would say so by itself, but only once it has looked, and before 7.0 not to scripts.
-- In quarantine nothing is granted. A waiter queues and is told the reign as the VALUE, and the time left;
-- what cannot queue is told `QUARANTINE` and the time left in ms. A lock that the old master may lose while
-- it still grants is not renewed: its holder would have it here, and another one there.
local call, sub, now = redis.call, string.sub, nil
local terms, met, reign = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
local looked, refused, left, settles
local function look()
  looked = true
  local settled, ends, count, lag = string.match(terms, '(%d+) (%d+) (%d+) (%d+)')
  local time, info = call('TIME'), call('INFO', 'replication')
  now, count, lag = time[1] .. sub('00000' .. time[2], -6), tonumber(count), tonumber(lag)
  for late in string.gmatch(info, 'state=online,offset=%d+,lag=(%d+)') do
    if tonumber(late) <= lag then count = count - 1 end
  end
  if count > 0 and string.find(info, 'min_slaves_good_slaves', 1, true) then
    refused = {err = 'NOREPLICAS not enough replicas have been heard of lately'}
  elseif call('GET', reign) ~= met
    or not string.find(info, 'master_replid:' .. sub(met, 42, 81), 1, true) then
    refused = {err = 'REIGN the master has changed'}
  elseif now < ends then
    left, settles = math.ceil((ends - now) / 1000), (settled - now) / 1000
    refused = {err = 'QUARANTINE ' .. string.format('%.0f', left)}
  end
end
local function may_grant()
  if not looked then look() end
  return not refused
end
local function may_last(time_left)
  return may_grant() or left and time_left >= settles
end
