"""The scripts of a consumer of Redis: it takes entries, settles them and leaves.

See `redis_scripts`.
"""

from typing import Final

from solstice_common.broker.redis_streams.redis_scripts import COMMON, RedisScript

TAKE: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, consumer, lease in ms, count, whether to sweep ('1' or ''), most bytes of an entry, then the ids of entries to ack
-- Returns whether the lease had ended, the entries (id, deliveries, returned, fields, bytes of an omitted body), what was
-- swept, whether the queue has a dead-letter exchange (without one, what was delivered too often would be lost), and the
-- command and key that the user may not use.
-- Of an entry with more bytes only `meta` is delivered, and that only within half of them.
local queue, consumer, lease_ms, count, most_bytes = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
local function within(fields)
  local size, meta = 0, nil
  for index = 1, #fields, 2 do
    size = size + #fields[index] + #fields[index + 1]
    if fields[index] == 'meta' then meta = fields[index + 1] end
  end
  if size <= most_bytes then return fields, 0 end
  return meta and #meta <= most_bytes / 2 and {'meta', meta} or {}, size
end
local key = prefix .. queue
local exists = redis.pcall('XPENDING', key, GROUP, '-', '+', 1, RETURNED)
if exists.err and is_denial(exists.err) then redis.call('XPENDING', key, GROUP, '-', '+', 1, RETURNED) end
if exists.err then return redis.error_reply('NOGROUP there is no stream ' .. key .. ' with the group ' .. GROUP) end
local swept = ARGV[6] ~= '' and sweep(queue, lease_ms) or {}
local lost, entries = redis.call('ZADD', key .. ':consumers', now_ms() + lease_ms, consumer), {}
local ids, done = {}, {}
for at = 8, #ARGV do ids[#ids + 1] = ARGV[at] end
local deliveries = held_by(key, consumer, ids)
for _, id in ipairs(ids) do
  if deliveries[id] then done[#done + 1] = id end
end
forget(key, done)
if count > 0 then
  for _, entry in ipairs(redis.call('XPENDING', key, GROUP, '-', '+', count, RETURNED)) do
    redis.call('XCLAIM', key, GROUP, consumer, 0, entry[1], 'RETRYCOUNT', entry[4], 'JUSTID')
    local found = redis.call('XRANGE', key, entry[1], entry[1])
    if #found == 0 then
      redis.call('XACK', key, GROUP, entry[1])
    else
      entries[#entries + 1] = {entry[1], entry[4], 1, within(found[1][2])}
    end
  end
end
if count > #entries then
  local read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count - #entries, 'STREAMS', key, '>')
  if read then
    for _, entry in ipairs(read[1][2]) do entries[#entries + 1] = {entry[1], 1, 0, within(entry[2])} end
  end
end
if count > 0 and #entries >= count then optional('ZADD', key .. ':new', 0, '1') end
return {lost, entries, swept, arguments(queue)['x-dead-letter-exchange'] and 1 or 0, denied}
"""
)

SETTLE: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, consumer, then of each entry: what ('ack', 'retry', 'dead'), id, key, meta of the dead letter
-- Returns the ids of dead letters that no queue takes, which stay where they are, how many were dropped, and how many
-- entries are gone from the queue.
local queue, consumer = ARGV[2], ARGV[3]
local key, done, unroutable, dropped = prefix .. queue, {}, {}, 0
local dead_letters = nil

local function dead_letter(id, routing_key, meta)
  if dead_letters == nil then dead_letters = arguments(queue) end
  local exchange = dead_letters['x-dead-letter-exchange']
  if not exchange then
    dropped = dropped + 1
    return true
  end
  local target_key = dead_letters['x-dead-letter-routing-key'] or routing_key
  local targets = route(exchange, target_key)
  if not targets or #targets == 0 then return false end
  local found = redis.call('XRANGE', key, id, id)
  if #found == 0 then return true end
  local fields = {'meta', '{"exchange":' .. cjson.encode(exchange) .. ',' .. string.sub(meta, 2)}
  local entry = found[1][2]
  -- Lua's `unpack` fails for some thousand values: then the body alone goes along.
  local is_large = #entry > MOST_VALUES
  for index = 1, #entry, 2 do
    if entry[index] == 'body' and is_large then
      fields[3], fields[4] = 'body', entry[index + 1]
    elseif entry[index] ~= 'meta' and not is_large then
      fields[#fields + 1] = entry[index]
      fields[#fields + 1] = entry[index + 1]
    end
  end
  for _, target in ipairs(targets) do redis.call('XADD', prefix .. target, '*', unpack(fields)) end
  return true
end

local ids = {}
for at = 5, #ARGV, 4 do ids[#ids + 1] = ARGV[at] end
local deliveries = held_by(key, consumer, ids)
for at = 4, #ARGV, 4 do
  local what, id = ARGV[at], ARGV[at + 1]
  if not deliveries[id] then
    -- Another's by now, or settled already: not ours to touch.
  elseif what == 'ack' then
    done[#done + 1] = id
  elseif what == 'retry' then
    redis.call('XCLAIM', key, GROUP, RETURNED, 0, id, 'RETRYCOUNT', deliveries[id] + 1, 'JUSTID')
  elseif dead_letter(id, ARGV[at + 2], ARGV[at + 3]) then
    done[#done + 1] = id
  else
    unroutable[#unroutable + 1] = id
  end
end
forget(key, done)
return {unroutable, dropped, #done}
"""
)

LEAVE: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, consumer
local key = prefix .. ARGV[2]
local exists = redis.pcall('XINFO', 'CONSUMERS', key, GROUP)
if exists.err and is_denial(exists.err) then redis.call('XINFO', 'CONSUMERS', key, GROUP) end
if exists.err then return 0 end
return give_back(ARGV[2], ARGV[3], 0)
"""
)
