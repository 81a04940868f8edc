"""The Lua scripts that declare queues of Redis, measure them and read their dead letters."""

from typing import Final

from solstice_common.broker.redis_streams.redis_scripts import COMMON, RedisScript

DECLARE: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, how many exchanges, queues, bindings; then name, kind; name, arguments; exchange, queue, key of each
-- Returns {} or the kind and name of what differs, and what is there instead.
local at, exchanges, queues, bindings = 5, {}, {}, {}
local function read(into, number, width)
  for _ = 1, number do
    local row = {}
    for index = 1, width do row[index] = ARGV[at + index - 1] end
    into[#into + 1] = row
    at = at + width
  end
end
read(exchanges, tonumber(ARGV[2]), 2)
read(queues, tonumber(ARGV[3]), 2)
read(bindings, tonumber(ARGV[4]), 3)

for _, row in ipairs(exchanges) do
  local found = redis.call('HGET', topology, 'x:' .. row[1])
  if found and found ~= row[2] then return {'exchange', row[1], found} end
end
for _, row in ipairs(queues) do
  local found = redis.call('HGET', topology, 'q:' .. row[1])
  if found and found ~= row[2] then return {'queue', row[1], found} end
end
-- Only what is missing: a user who may not declare passes where everything exists.
local function note(field, value)
  local found = redis.call('HGET', topology, field)
  if found == value then return false end
  redis.call('HSET', topology, field, value)
  return true
end
for _, row in ipairs(exchanges) do note('x:' .. row[1], row[2]) end
for _, row in ipairs(queues) do
  local is_new = note('q:' .. row[1], row[2])
  local key = prefix .. row[1]
  local made = redis.pcall('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
  if type(made) == 'table' and made.err and is_denial(made.err) then
    local exists = redis.pcall('XINFO', 'CONSUMERS', key, GROUP)
    if is_new or exists.err and not is_denial(exists.err) then return redis.error_reply('DENIED xgroup|create ' .. key) end
  elseif type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP') then
    return made
  end
end
for _, row in ipairs(bindings) do
  local kind = redis.call('HGET', topology, 'x:' .. row[1])
  if not kind or redis.call('HEXISTS', topology, 'q:' .. row[2]) == 0 then return {'binding', row[1], row[2]} end
  local field = 'b:' .. row[1] .. '\\0' .. (kind == 'fanout' and '' or row[3])
  local stored = redis.call('HGET', topology, field)
  local bound, known = stored and cjson.decode(stored) or {}, false
  for _, queue in ipairs(bound) do known = known or queue == row[2] end
  if not known then
    bound[#bound + 1] = row[2]
    redis.call('HSET', topology, field, cjson.encode(bound))
  end
end
return {}
"""
)

DEPTH: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, lease in ms
-- Returns {} without such a queue, else: ready, pending, consumers, age of the oldest and rest of the next lease in ms
local queue, key, now = ARGV[2], prefix .. ARGV[2], now_ms()
if redis.call('HEXISTS', topology, 'q:' .. queue) == 0 then return {} end
local exists = redis.pcall('XINFO', 'CONSUMERS', key, GROUP)
if exists.err and is_denial(exists.err) then redis.call('XINFO', 'CONSUMERS', key, GROUP) end
if exists.err then return {0, 0, 0, -1, -1} end
-- Who only counts need not be able to return what dead consumers hold, nor to read messages.
pcall(sweep, queue, tonumber(ARGV[3]))
local pending, returned = redis.call('XPENDING', key, GROUP), 0
for _, each in ipairs(pending[4] or {}) do
  if each[1] == RETURNED then returned = tonumber(each[2]) end
end
local held = pending[1] - returned
local oldest, age = redis.pcall('XRANGE', key, '-', '+', 'COUNT', 1), -1
if not oldest.err and #oldest > 0 then age = math.max(0, now - tonumber(string.match(oldest[1][1], '^%d+'))) end
local first, lease = redis.call('ZRANGE', key .. ':consumers', 0, 0, 'WITHSCORES'), -1
if #first > 0 then lease = tonumber(first[2]) - now end
local consumers = redis.call('ZCOUNT', key .. ':consumers', now, '+inf')
return {math.max(0, redis.call('XLEN', key) - held), held, consumers, age, lease}
"""
)

BROWSE: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, lease in ms, where to start, count, most bytes of an entry, most bytes of all
-- Returns the entries that no living consumer holds (id, fields, bytes), and the id of the last one looked at.
-- The fields of a larger entry are left out: PART reads it. All are as many as have `most bytes of all`, or one more.
local queue, key, start = ARGV[2], prefix .. ARGV[2], ARGV[4]
local count, most_bytes, left = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local exists = redis.pcall('XINFO', 'CONSUMERS', key, GROUP)
if exists.err and is_denial(exists.err) then redis.call('XINFO', 'CONSUMERS', key, GROUP) end
if exists.err then return {{}, ''} end
if start == '-' then sweep(queue, tonumber(ARGV[3])) end
local found, last = {}, start
-- One by one: the server would hold all that one command returns, too.
while #found < count and left > 0 do
  local entry = redis.call('XRANGE', key, last, '+', 'COUNT', 1)[1]
  if not entry then break end
  local id, fields, size = entry[1], entry[2], 0
  for index = 1, #fields do size = size + #fields[index] end
  found[#found + 1] = {id, size <= most_bytes and fields or {}, size}
  last, left = '(' .. id, left - size
end
if #found == 0 then return {{}, ''} end
local held, free = {}, {}
for _, entry in ipairs(redis.call('XPENDING', key, GROUP, found[1][1], found[#found][1], 1000000)) do
  held[entry[1]] = entry[2] ~= RETURNED
end
for _, entry in ipairs(found) do
  if not held[entry[1]] then free[#free + 1] = entry end
end
return {free, found[#found][1]}
"""
)

PART: Final = RedisScript(
    """
-- ARGV: prefix, queue, id of an entry, name of a field, where to start (from 0), how many bytes
-- Returns the size of the field, and these bytes of it; false without the entry. Of two fields of one name the last counts.
local found = redis.call('XRANGE', ARGV[1] .. ARGV[2], ARGV[3], ARGV[3])
if #found == 0 then return false end
local fields, value = found[1][2], ''
for index = 1, #fields, 2 do
  if fields[index] == ARGV[4] then value = fields[index + 1] end
end
local start = tonumber(ARGV[5])
return {#value, string.sub(value, start + 1, start + tonumber(ARGV[6]))}
"""
)

CONSUMERS: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue
-- Returns the names of the consumers that the queue knows.
local key = prefix .. ARGV[2]
local names, exists = {}, redis.pcall('XINFO', 'CONSUMERS', key, GROUP)
if exists.err and is_denial(exists.err) then redis.call('XINFO', 'CONSUMERS', key, GROUP) end
if exists.err then return names end
for _, info in ipairs(exists) do
  for index = 1, #info, 2 do
    if info[index] == 'name' then names[#names + 1] = info[index + 1] end
  end
end
return names
"""
)

PUT_BACK: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, queue, meta, body
-- Returns whether it was stored, 0 in a full queue; false without such a queue.
local queue, key = ARGV[2], prefix .. ARGV[2]
if redis.call('HEXISTS', topology, 'q:' .. queue) == 0 then return false end
local limit = tonumber(arguments(queue)['x-max-length'])
if limit and redis.call('XLEN', key) >= limit then return 0 end
redis.call('XADD', key, '*', 'body', ARGV[4], 'meta', ARGV[3])
return 1
"""
)
