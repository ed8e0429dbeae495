-- Takes locks and gives them back: any number of steps, one after the other, each as if it had come alone.
-- No functions: they cost more than the step.
-- KEYS  for each step two: lock and fence to take it, lock and queue to give it back. `line` has the queue as
--       a third. At the end the node, if any step takes a lock
-- ARGV  for each step one of
--         ttl ms, value, proposal us, not after us          takes the lock if it is free
--         `line`, the same four, entry                      the same, or joins the queue
--         `free`, value                                     gives it back, wakes the first reachable waiter
--         `leave`, value, entry, `wake` or `quiet`          leaves the queue, gives it back, wakes or not
--         `back`, value, value before                       undoes what `attach.lua` did
--       at the end, if any step takes a lock: what the node key must be, and how far a proposal may be from
--       this node's clock, us
-- Reply: that of the step, or a list of them if there are several. To take a lock:
--          the counter, if the key is the caller's
--          {'HELD', value of the holder, its ttl ms, the counter, the clock} if it is somebody else's
--          {'NODE', the node key} if this node does not vote in this deployment now
--          {'LATE', the clock} if the request comes too late
--        to give it back, or to undo: 1 if the key was the caller's, 0 if not
local call, key, word, now, out, replies = redis.pcall, 1, 1, nil, nil, nil
while true do
  local verb, lock, beside, reply = ARGV[word], KEYS[key], KEYS[key + 1], nil
  key = key + 2
  if verb == 'back' then
    reply = call('GET', lock)
    if reply == ARGV[word + 1] then
      local set = call('SET', lock, ARGV[word + 2], 'KEEPTTL')
      reply = set.err and set or 1
    else
      reply = type(reply) == 'table' and reply or 0
    end
    word = word + 3
  elseif verb == 'free' or verb == 'leave' then
    local value, wake = ARGV[word + 1], true
    word = word + 2
    if verb == 'leave' then
      if ARGV[word] ~= '' then call('LREM', beside, 1, ARGV[word]) end
      wake = ARGV[word + 1] == 'wake'
      word = word + 2
    end
    local holder = call('GET', lock)
    -- A revoked lock has `!` in front and the reason after it. Giving it back acknowledges that.
    if holder == value
      or type(holder) == 'string' and string.sub(holder, 1, #value + 2) == '!' .. value .. '\n' then
      reply = call('DEL', lock)
      -- A wake-up is a hint.
      local entry = wake and call('LPOP', beside)
      while type(entry) == 'string'
        and call('PUBLISH', string.sub(entry, 1, 16), 'free ' .. string.sub(entry, 18) .. ' ') == 0 do
        entry = call('LPOP', beside)
      end
    else
      reply = type(holder) == 'table' and holder or 0
    end
  else
    local queue, entry
    if verb == 'line' then
      queue, entry = KEYS[key], ARGV[word + 5]
      key, word = key + 1, word + 1
    end
    local ttl, value, bound = ARGV[word], ARGV[word + 1], ARGV[#ARGV]
    if not now then
      local node = call('GET', KEYS[#KEYS])
      if node ~= ARGV[#ARGV - 1] then out = type(node) == 'table' and node or {'NODE', node or ''} end
      local time = call('TIME')
      if time.err then out, now = time, 0 else now = time[1] * 1000000 + time[2] end
    end
    if out then
      reply = out
    elseif now > tonumber(ARGV[word + 3]) then
      reply = {'LATE', now}
    else
      reply = call('SET', lock, value, 'NX', 'PX', ttl)
      if reply and reply.ok then
        -- The counter after a grant: one more than ever before. It leaps to the proposal if it is behind that
        -- by more than a fifth of the bound. So nodes stay in step, and a node that has lost its counter is
        -- above what it once confirmed. The proposal comes from the caller's clock; it moves the counter at
        -- most the bound away from this node's clock.
        reply = call('INCR', beside)
        local near = tonumber(ARGV[word + 2])
        if near > now + bound then near = now + bound elseif near < now - bound then near = now - bound end
        if type(reply) ~= 'number' then
          -- Not granted, so not taken: the same request, sent again, must not find its lock here.
          call('DEL', lock)
        elseif near > reply + bound / 5 then
          reply = near
          call('SET', beside, string.format('%.0f', near), 'PX', '86400000')
        end
        if entry then call('LREM', queue, 1, entry) end
      elseif not reply then
        local holder = call('GET', lock)
        if type(holder) == 'table' then
          reply = holder
        elseif holder == value then
          -- The same request, delivered twice. Never shortens the lock.
          local left = call('PTTL', lock)
          if type(left) == 'number' and left < tonumber(ttl) then call('PEXPIRE', lock, ttl) end
          reply = tonumber(call('GET', beside) or '0') or 0
        else
          local place = entry and call('LPOS', queue, entry)
          if entry and type(place) ~= 'table' then
            if not place then call('RPUSH', queue, entry) end
            call('PEXPIRE', queue, '60000')
          end
          reply = {'HELD', holder, call('PTTL', lock), tonumber(call('GET', beside) or '0') or 0, now}
        end
      end
    end
    word = word + (entry and 5 or 4)
  end
  if not replies then
    if key >= #KEYS then return reply end
    replies = {reply}
  else
    replies[#replies + 1] = reply
    if key >= #KEYS then return replies end
  end
end
