-- Takes the lock away from its holder and tells it why.
-- KEYS  1 lock   2 fence   3 queue
-- ARGV  1 identity of the holder, as seen; empty for a foreign client's   2 reason   3 `now` or `ask`   4 term ms of a grant by push
-- Reply: {a fresh token, the value found}, or 0 if the holder is another one by now
--
-- `ask` keeps the lock held: the value gets `!` in front and the reason behind, so that renewals of the old value
-- fail, while the holder can still give it back.
local value = redis.call('GET', KEYS[1])
if ARGV[1] == '' then
  if not value or string.match(value, '^!?%x+%-%x+%-%x+%-%x+%-%x+ %x+ {') then return 0 end
elseif not value or string.sub(value, 1, 36) ~= ARGV[1] and string.sub(value, 1, 37) ~= '!' .. ARGV[1] then
  return 0
end
local fresh, found = next_token(KEYS[2]), value
if string.sub(value, 1, 1) == '!' then value = string.match(string.sub(value, 2), '^[^\n]*') end
redis.call('PUBLISH', string.sub(value, 38, 53), 'revoked ' .. string.sub(value, 1, 36) .. ' ' .. ARGV[2])
if ARGV[3] == 'ask' then
  redis.call('SET', KEYS[1], '!' .. value .. '\n' .. ARGV[2], 'KEEPTTL')
elseif not pass_on(KEYS[1], KEYS[2], KEYS[3], ARGV[4]) then
  redis.call('DEL', KEYS[1])
end
return {fresh, found}
