-- Renews many locks. Never re-creates one and never shortens one: a late request may arrive after a newer one.
-- KEYS  the locks
-- ARGV  for each lock: ttl ms, identity that the caller has it under
-- Reply: for each lock that is not the caller's any more: its index, and the value found (empty if none)
local lost = {}
for i = 1, #KEYS do
  local holder = redis.pcall('GET', KEYS[i])
  if type(holder) ~= 'string' or string.sub(holder, 1, 36) ~= ARGV[2 * i] then
    lost[#lost + 1] = i
    lost[#lost + 1] = type(holder) == 'string' and holder or ''
  elseif redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2 * i - 1]) then
    redis.call('PEXPIRE', KEYS[i], ARGV[2 * i - 1])
  end
end
return lost
