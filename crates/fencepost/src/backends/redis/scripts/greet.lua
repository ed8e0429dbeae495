-- Over a new link to the master that Sentinel names: from when on may this server grant locks?
-- KEYS  1 reign
-- ARGV  1 longest lease ms   2 for how long a master that was left alone may go on, ms
--       3 `meet`; or, from an operator, `found` for a new deployment, `change` for another longest lease
-- Reply: {the reign, its quarantine's time left ms, whether this call began it}
--
-- The reign is `RUN REPLID LEASE ALONE SETTLED UNTIL WHY`. A server has another run id after a restart, and
-- another replication id whenever it becomes master. So a reign of another pair says that this server may
-- not know of what was granted last. Until SETTLED, in microseconds of its clock, its predecessor may grant
-- still; until UNTIL what that has granted may last. LEASE and ALONE are the longest that any client has
-- named; a longer one takes effect by a quarantine of its own, so that replicas know of it before it is
-- needed.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local said = redis.call('GET', KEYS[1])
local pair, old_lease, old_alone, settled, ends, why =
  string.match(said or '', '^(%x+ %x+) (%d+) (%d+) (%d+) (%d+) (%l+)$')
local same = pair == run .. ' ' .. id
local lease, alone = tonumber(ARGV[1]), tonumber(ARGV[2])
local longest = math.max(lease, tonumber(old_lease or '0'))
local later = math.max(alone, tonumber(old_alone or '0'))

local function write(because, waits)
  local function number(value) return string.format('%.0f', value) end
  ends = number(now + waits * 1000)
  -- Nothing but time settles it, once the server is known to be master.
  settled = same and settled or number(now + later * 1000)
  said = table.concat({run, id, number(lease), number(alone), settled, ends, because}, ' ')
  redis.call('SET', KEYS[1], said)
  return 1
end

local wrote = 0
if ARGV[3] == 'change' then
  wrote = write('changed', longest + later)
elseif ARGV[3] == 'found' and (same or not pair) then
  if not pair or why == 'new' and now < tonumber(ends) then wrote = write('declared', 0) end
elseif not same then
  lease, alone = longest, later
  wrote = write(pair and 'switched' or 'new', lease + alone)
elseif lease > tonumber(old_lease) or alone > tonumber(old_alone) then
  lease, alone = longest, later
  wrote = write('changed', lease + alone)
end
return {said or '', math.max(0, math.ceil((tonumber(ends or '0') - now) / 1000)), wrote}
