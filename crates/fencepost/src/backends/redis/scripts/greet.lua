-- Over a new link to the master that Sentinel names: from when on may this server grant locks?
-- KEYS  1 reign
-- ARGV  1 pause ms: the longest lease, and how long a master that was left alone may have granted
--       2 `meet`; or, from an operator, `found` for a new deployment, `change` for another pause
-- Reply: {the reign, its quarantine's time left ms, whether this call began it}
--
-- The reign is `RUN REPLID PAUSE UNTIL WHY`. A server has another run id after a restart, and another
-- replication id whenever it becomes master. So a reign of another pair says that this server may not know of
-- what was granted last. Nothing is granted until that has ended: UNTIL, in microseconds of its clock.
-- The pause is the longest that any client has asked for; a longer one takes effect by a quarantine of its
-- own, so that replicas know of it before the first lease that needs it.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local said = redis.call('GET', KEYS[1])
local pair, old, ends, why = string.match(said or '', '^(%x+ %x+) (%d+) (%d+) (%l+)$')
local same = pair == run .. ' ' .. id
local asked = tonumber(ARGV[1])
local longest = math.max(asked, tonumber(old or '0'))
local pause, wait, because
if ARGV[2] == 'change' then
  pause, wait, because = asked, longest, 'changed'
elseif ARGV[2] == 'found' then
  if not pair or same and why == 'new' and now < tonumber(ends) then
    pause, wait, because = asked, 0, 'declared'
  end
elseif not pair then
  pause, wait, because = asked, asked, 'new'
elseif not same then
  pause, wait, because = longest, longest, 'switched'
elseif asked > tonumber(old) then
  pause, wait, because = asked, asked, 'changed'
end
if pause then
  ends = string.format('%.0f', now + wait * 1000)
  said = run .. ' ' .. id .. ' ' .. string.format('%.0f', pause) .. ' ' .. ends .. ' ' .. because
  redis.call('SET', KEYS[1], said)
end
return {said or '', math.max(0, math.ceil((tonumber(ends or '0') - now) / 1000)), pause and 1 or 0}
