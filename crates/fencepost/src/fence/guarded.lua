-- Checks a fencing token and, in the same step, runs one command. For any client: load it as it is.
-- KEYS  1 guard: the largest token that was seen, a plain string. Must never expire and never be evicted
--       2… the keys of the command, for those who list them; with the hash tag of the guard
-- ARGV  1 token
--       2 `>=`: a holder comes as often as it likes; `>`: once a token
--       3… the command and its arguments, if any
-- Reply: that of the command, nil without one; the error `STALE highest` if the token is too old: nothing was
-- done
local seen = redis.call('GET', KEYS[1])
-- A holder that comes again needs no arithmetic.
if seen ~= ARGV[1] or ARGV[2] ~= '>=' then
  local presented = string.match(ARGV[1], '^[1-9]%d*$') and tonumber(ARGV[1])
  if not presented or presented >= 9007199254740992 then
    return redis.error_reply('ERR a fencing token lies between 1 and 2^53 - 1')
  end
  if ARGV[2] ~= '>=' and ARGV[2] ~= '>' then return redis.error_reply('ERR the rule is >= or >') end
  local highest = string.match(seen or '0', '^%d+$') and tonumber(seen or '0')
  if not highest then return redis.error_reply('ERR the guard ' .. KEYS[1] .. ' holds no token') end
  if presented < highest or (presented == highest and ARGV[2] == '>') then
    return redis.error_reply('STALE ' .. seen)
  end
  -- The token first: if the command fails, its holder has shown it and done no more.
  redis.call('SET', KEYS[1], ARGV[1])
end
if #ARGV == 2 then return false end
return redis.call(unpack(ARGV, 3))
