-- Every change to a lock: any number of steps, one after the other, each as if it had come alone.
--
-- KEYS  for each step: lock, fence, queue. `renew` and `attach` use the lock alone, which may stand for all.
-- ARGV  for each step three words:
--   try    ENTRY                   ttl ms   takes the lock if it is free and no waiter can be served
--   wait   ENTRY                   ttl ms   the same, else joins the queue: the first request of an attempt
--   again  ENTRY                   ttl ms   the same, for an attempt that may stand there by now, or hold;
--          the verb may end in the place where it stood, as `again 17`: there it is sought first
--   free   IDENTITY TOKEN          -        gives this grant back, also after `ask`
--   leave  ENTRY                   -        undoes the first three: leaves the queue and gives the lock back
--   renew  IDENTITY TOKEN          ttl ms   never makes a lock anew, never shortens it
--   attach IDENTITY TOKEN\nENTRY   ttl ms   the same, and goes on as this entry; may be repeated
--   ask    VALUE                   reason   lets the holder with this value keep the lock, not renew it
--   seize  ENTRY\nVALUE            reason   takes the lock for one second from the holder with this value
--
-- ENTRY is `IDENTITY CHANNEL JSON`: 36, 16 and any number of characters, no new line. The VALUE of a lock is
-- `ENTRY TOKEN`; if its holder was asked to let go, `!ENTRY TOKEN`, a new line and the reason.
-- The fence is `TOKEN`, or `TOKEN CHANNEL` after a grant by a push.
--
-- Reply: that of the step, or a list if there are several. A step may be answered by an error of its own.
--   try, wait, again, ask, seize: a new token as text; else {VALUE, its ttl ms, place in the queue or -1}
--   free, leave: 1 if there was something to give back, else 0
--   renew, attach: 1; else the VALUE found instead, empty if there is none
-- Of a foreign VALUE these, and the first three, tell 16 kB: it may be of any length, and calls are shared.
-- Pushes on the channel of an entry: `granted IDENTITY TOKEN` (for one second), `revoked IDENTITY REASON`.
local call, sub, now = redis.call, string.sub, nil

-- Where a step has nothing to write, GETEX stands for a write that changes nothing. A server that has become
-- a replica, and may not have heard of the lock yet, must not say that it is gone.
-- A single function that knows few names from outside: each costs something, each time the script is called.
local function step(lock, fence, queue, verb, who, ttl)
  local holder, giving, head, popped, bad = call('GET', lock), false, nil, nil, nil
  local asked, told, message
  if verb == 'free' or verb == 'leave' then
    local stood = verb == 'leave' and redis.pcall('LREM', queue, '0', who) or 0
    local value = holder and sub(holder, 1, 1) == '!' and string.match(holder, '^!([^\n]*)') or holder
    local suffix = sub(who, 37)
    if not value or sub(value, 1, 36) ~= sub(who, 1, 36)
      or verb == 'free' and sub(value, -#suffix) ~= suffix then
      if verb == 'free' then call('GETEX', lock) end
      return stood
    end
    giving, popped = true, redis.pcall('LPOP', queue)
    if type(popped) == 'table' then bad, popped = {err = popped.err .. ': ' .. queue}, nil end
    head = popped
  elseif verb == 'renew' or verb == 'attach' then
    local mine, new = who, nil
    if verb == 'attach' then mine, new = string.match(who, '^([^\n]*)\n(.*)$') end
    local suffix = sub(mine, 37)
    local found = holder and sub(holder, -#suffix) == suffix and sub(holder, 1, 36)
    -- A repeated `attach` finds what the first one wrote.
    if not found or found ~= sub(mine, 1, 36) and not (new and found == sub(new, 1, 36)) then
      call('GETEX', lock)
      return sub(holder or '', 1, 16384)
    end
    if new then call('SET', lock, new .. suffix, 'KEEPTTL') end
    local left = call('PTTL', lock)
    call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)
    return 1
  elseif verb == 'ask' or verb == 'seize' then
    local entry, value = '', who
    if verb == 'seize' then entry, value = string.match(who, '^([^\n]*)\n(.*)$') end
    if holder ~= value then return {holder or '', call('PTTL', lock), -1} end
    local identity, channel = string.match(value, '^!?(%S+) (%x+) ')
    if channel and #channel == 16 then told, message = channel, 'revoked ' .. identity .. ' ' .. ttl end
    if verb == 'ask' then asked = '!' .. string.match(value, '^!?([^\n]*)') .. '\n' .. ttl end
    who, head, ttl = entry, entry, '1000'
  elseif not holder then
    -- Whoever came earlier is served first: the lock has ended without a release.
    popped = call('LPOP', queue)
    head = popped or who
    local last = popped and redis.pcall('GET', fence)
    local slow = type(last) == 'string' and string.match(last, ' (%x+)$')
    if slow and slow ~= sub(who, 38, 53) then
      -- The process that did not take its push may be stopped: its other tasks do not cost a second each.
      for _, entry in ipairs(call('LRANGE', queue, '0', '255')) do
        if sub(entry, 38, 53) == slow then call('LREM', queue, '1', entry) end
      end
      if sub(popped, 38, 53) == slow then popped = call('LPOP', queue) end
      head = popped or who
    end
  elseif sub(holder, 1, #who) == who then
    -- Granted by a push that did not arrive.
    local left = call('PTTL', lock)
    call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)
    return sub(holder, #who + 2)
  end

  while head do
    local channel = head ~= who and sub(head, 38, 53)
    -- Counted before the push, not by it: PUBLISH counts listeners to all channels, and a replica repeats it.
    local reached = channel and redis.pcall('PUBSUB', 'NUMSUB', channel)
    if reached and reached.err then bad = reached break end
    if not channel or reached[2] > 0 then
      if not now then
        local time = call('TIME')
        now = time[1] .. sub('00000' .. time[2], -6)
      end
      -- The token is the clock in microseconds, or the last one plus one if the clock is not ahead of it.
      -- Text, not numbers: to print one costs as much as a command. The fence outlives both by an hour.
      local token, note = now, channel and ' ' .. channel or ''
      local far = #now > 16 or #now == 16 and now >= '9007199254740992'
      local last = far and {err = 'ERR the clock is out of range'}
        or redis.pcall('SET', fence, now .. note, 'PX', '3600000', 'GET')
      if type(last) == 'table' then bad = {err = last.err .. ': ' .. fence} break end
      if last and #last > 16 then last = string.match(last, '^%d+') end
      if last and (#last > #now or #last == #now and last >= now) then
        token = string.format('%.0f', last + 1)
        call('SET', fence, token .. note, 'PXAT', string.format('%.0f', token / 1000 + 3600000))
        if tonumber(token) >= 2 ^ 53 then bad = {err = 'ERR the token is out of range: ' .. fence} break end
      end
      if asked then
        call('SET', lock, asked, 'KEEPTTL')
      else
        -- A waiter gets the lock for one second, and has to renew it.
        call('SET', lock, head .. ' ' .. token, 'PX', channel and '1000' or ttl)
      end
      -- Told after the write, which a replica or a full server refuses. A look finds what nobody could tell.
      if told then redis.pcall('PUBLISH', told, message) end
      if not channel then return token end
      redis.pcall('PUBLISH', channel, 'granted ' .. sub(head, 1, 37) .. token)
      break
    end
    popped = call('LPOP', queue)
    head = popped or not giving and who
  end

  if bad then
    -- Whoever was taken out goes back, and what was to be given back is free.
    if popped then call('LPUSH', queue, popped) call('PEXPIRE', queue, '60000') end
    if giving then call('DEL', lock) end
    return bad
  end
  if giving then
    if not head then call('DEL', lock) end
    return 1
  end
  local place = -1
  -- An attempt that was asked to let go before it knew of its grant does not queue after itself.
  if verb ~= 'try' and not (holder and sub(holder, 2, #who + 1) == who) then
    place = false
    if sub(verb, 1, 5) == 'again' then
      local first = call('LINDEX', queue, '0')
      local reached = first and first ~= who and redis.pcall('PUBSUB', 'NUMSUB', sub(first, 38, 53))
      if reached and reached[2] == 0 then call('LPOP', queue) end
      -- A long queue that does not move is not searched.
      local stood = sub(verb, 7)
      place = stood ~= '' and call('LINDEX', queue, stood) == who and stood - 0 or call('LPOS', queue, who)
    end
    place = place or call('RPUSH', queue, who) - 1
    call('PEXPIRE', queue, '60000')
  end
  return {sub(call('GET', lock) or '', 1, 16384), call('PTTL', lock), place}
end

if #KEYS == 3 then return step(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]) end
local replies = {}
for i = 1, #KEYS, 3 do
  -- An error is the reply to its own step.
  local done, reply =
    pcall(step, KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[i], ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = (done or type(reply) == 'table') and reply or {err = reply}
end
return replies
