-- Takes locks, gives them back and hands them over: any number of steps, one after the other, each as if it had come alone. No
-- functions: they cost more than the step.
-- KEYS  for each step: lock, fence, queue
-- ARGV  for each step one of
--         `try`, value, term ms of a grant by push, ttl ms    takes the lock if it is free
--         `wait`, value, term ms, ttl ms      the same, but stands in the queue if it is held, or if others came earlier
--         `free`, identity, term ms           gives it back and hands it to the first waiter that can be reached
--         `leave`, value, term ms             leaves the queue and does the same
--         `quit`, value                       leaves the queue, whoever has the lock
--         `hand`, identity, term ms, value of the successor, its ttl ms, turns, count, value of the row
--           hands it to a waiter of the same process, unless it is another process's turn: `turns` is how often the lock
--           may still stay in this process while others queue. If `count` is more than 1 it goes to a row of so many, or of
--           as many as have a turn then
--         `pass`, identity of a row, value    tells others who of the row has it now
--       An identity is the first 36 characters of a value: the owner, or that of a row.
-- Reply: that of the step, or a list of them if there are several. To take a lock:
--          the token, if the caller has the lock now
--          {value of the holder, its ttl ms, the counter, the caller's place in the queue} if not
--        to give it back: 1 if the lock was the caller's, 0 if not
--        to hand it over: the successor's token, of a row {the first token, how many there are}; 0 if the lock was not the
--          caller's; -1 if another process has it now and the successor stands in the queue
--        to leave the queue: 1 if the caller stood there, 0 if not
--        to pass it: 1 if the lock is the row's, else the value found (empty if none)
local call, key, word, replies = redis.pcall, 1, 1, nil
while true do
  local verb, value, term, ttl = ARGV[word], ARGV[word + 1], ARGV[word + 2], ARGV[word + 3]
  local lock, fence, queue = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  -- Who gets the lock next, and who of those learns it by the reply and needs no message.
  local head, mine, reply, holder, set
  -- How many tokens `mine` gets, and the value of its row.
  local count, row = 1, nil
  if verb == 'wait' or verb == 'try' then
    mine, word = value, word + 4
    set = call('SET', lock, value, 'NX', 'PX', ttl)
    if not set then
      holder = call('GET', lock)
      if holder == value then
        -- Granted by a push that did not arrive.
        local left = call('PTTL', lock)
        if type(left) == 'number' and left < tonumber(ttl) then call('PEXPIRE', lock, ttl) end
        reply = tonumber(call('GET', fence) or '')
        if not reply then head = value end
      elseif holder and holder.err then
        reply = holder
      end
    elseif set.err then
      reply, set = set, nil
    else
      -- If others came earlier, the lock ended without a release.
      head = verb == 'wait' and call('LPOP', queue) or value
    end
  elseif verb == 'pass' then
    holder, word = call('GET', lock), word + 3
    if not holder or string.sub(holder.err or holder, 1, 36) ~= value then
      reply = holder or ''
    else
      -- Who has the larger token had it later, whichever request comes first.
      local before, token = string.match(holder, '"token":(%d+)'), string.match(term, '"token":(%d+)')
      if tonumber(before or 0) < tonumber(token) then call('SET', lock, term, 'KEEPTTL') end
      reply = 1
    end
  elseif verb == 'quit' then
    reply, word = call('LREM', queue, 1, value), word + 2
  else
    if verb == 'leave' then call('LREM', queue, 1, value) end
    holder = call('GET', lock)
    local identity = string.sub(value, 1, 36)
    -- A revoked lock has `!` in front and the reason behind; giving it back is the acknowledgement.
    if not holder or holder.err
      or string.sub(holder, 1, 36) ~= identity and string.sub(holder, 1, 37) ~= '!' .. identity then
      reply = holder and holder.err and holder or 0
    elseif verb == 'hand' then
      local turns = tonumber(ARGV[word + 5])
      mine, ttl, count = ttl, ARGV[word + 4], tonumber(ARGV[word + 6])
      row = count > 1 and ARGV[word + 7]
      call('LREM', queue, 1, mine)
      head = turns == 0 and call('LPOP', queue) or mine
      if turns > 0 and turns < count and call('LLEN', queue) ~= 0 then count = turns end
    else
      head = call('LPOP', queue)
    end
    word = word + (verb == 'hand' and 8 or 3)
  end
  while head do
    -- The next token, or as many as a row has members. A new counter starts at the clock and gains one a grant, so it
    -- stays behind the clock, and one that starts anew, after its day or after a loss of data, starts above it.
    local many = head == mine and row
    local token = head.err and head or many and call('INCRBY', fence, count) or call('INCR', fence)
    if token == 1 or many and token == count then
      if many then count = 1 end
      local time = call('TIME')
      if not time.err then
        token = time[1] * 1000000 + time[2]
        time = call('SET', fence, string.format('%.0f', token), 'PX', '86400000')
      end
      if time.err then
        call('DEL', fence)
        token = time
      end
    elseif many and type(token) == 'number' then
      -- Many at once could pass the clock: what it does not allow yet is given back.
      local time = call('TIME')
      local over = time.err and count or token - time[1] * 1000000 - time[2]
      if over > 0 then
        over = math.min(over, count - 1)
        token, count = call('DECRBY', fence, over), count - over
      end
    end
    if head == mine or type(token) == 'table' then
      reply = token
      break
    end
    local grant = 'granted ' .. string.sub(head, 1, 36) .. ' ' .. string.format('%.0f', token)
    local reached = call('PUBLISH', string.sub(head, 38, 53), grant)
    if reached ~= 0 then
      -- For a short term, which the waiter has to renew.
      if type(reached) == 'table' then reply = reached else call('SET', lock, head, 'PX', term) end
      break
    end
    head = call('LPOP', queue) or mine
  end
  if not mine then
    if head then reply = reply or 1 elseif not reply then reply = call('DEL', lock) end
  elseif not reply then
    -- Another one has it, and the caller or the successor is in the queue, or comes there now.
    local place = 0
    if verb ~= 'try' then
      place = call('LPOS', queue, mine)
      if not place then
        place = call('RPUSH', queue, mine)
        if type(place) == 'number' then place = place - 1 end
      end
      call('PEXPIRE', queue, '60000')
    end
    if type(place) == 'table' then
      reply = place
    elseif verb == 'hand' then
      reply = -1
    else
      reply = {head or holder, call('PTTL', lock), tonumber(call('GET', fence) or '-1') or -1, place}
    end
  elseif verb == 'hand' then
    if head == mine and type(reply) == 'number' then
      if row then
        reply = {reply - count + 1, count}
        mine = string.sub(row, 1, -2) .. ',"token":' .. string.format('%.0f', reply[1]) .. '}'
      end
      call('SET', lock, mine, 'PX', ttl)
    end
  elseif set and type(reply) == 'table' then
    -- Not granted, so not taken.
    call('DEL', lock)
  end
  key = key + 3
  if not replies then
    if key > #KEYS then return reply end
    replies = {reply}
  else
    replies[#replies + 1] = reply
    if key > #KEYS then return replies end
  end
end
