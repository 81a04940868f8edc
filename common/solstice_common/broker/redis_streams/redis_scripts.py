"""The Lua scripts of the Redis broker, each one atomic step.

They run on Redis 6.2 to 8 and on Valkey; commands that only newer servers have are not used. Keys, behind the prefix:

* `QUEUE`: the stream, with the consumer group `solstice`; nothing trims it, acked entries are deleted
* `QUEUE:consumers`: sorted set of consumers by the end of their lease, in milliseconds of the server's clock
* `QUEUE:new`: a sorted set of one member after a publish, which wakes a waiting consumer
* `QUEUE:idemp:NUMBER`: set of the idempotency keys that were stored within these ten seconds; expires after the window
* `solstice:topology`: hash of exchanges (`x:NAME`), queues (`q:NAME`) and bindings (`b:EXCHANGE` NUL `KEY`)

An entry that its consumer returned is pending for the consumer `$returned`, and delivered before new ones. The server's
count of deliveries is one more than the failed deliveries: returning an entry in peace leaves it, a retry and the end
of a lease add one.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

DEDUPE_SECONDS: Final = 600
"""How long the relay's repeat is recognised."""


@dataclass(frozen=True, slots=True)
class RedisScript:
    """A script, and the name under which the server keeps it."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest())


COMMON: Final = """
local GROUP, RETURNED, MOST_VALUES = 'solstice', '$returned', 4000
local prefix = ARGV[1]
local topology = prefix .. 'solstice:topology'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function is_denial(why) return string.find(why, 'user executing') or string.find(why, 'ACL failure') end

-- The first command that the user may not run, of those whose failure is no reason to fail.
local denied = ''
local function optional(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if denied == '' and type(reply) == 'table' and reply.err and is_denial(reply.err) then denied = command .. ' ' .. key end
  return reply
end

-- `unpack` of some thousand values fails, so they go in chunks.
local function in_chunks(ids, act)
  for first = 1, #ids, 500 do
    local chunk = {}
    for index = first, math.min(first + 499, #ids) do chunk[#chunk + 1] = ids[index] end
    act(chunk)
  end
end

-- How often each of these entries was delivered, of those that are pending for the consumer; it may not settle others.
-- Entries in order, as a batch's are, are looked up all at once.
local function held_by(key, consumer, ids)
  local deliveries = {}
  if #ids > 1 then
    for _, entry in ipairs(redis.call('XPENDING', key, GROUP, ids[1], ids[#ids], #ids, consumer)) do
      deliveries[entry[1]] = entry[4]
    end
  end
  for _, id in ipairs(ids) do
    if not deliveries[id] then
      local pending = redis.call('XPENDING', key, GROUP, id, id, 1, consumer)
      deliveries[id] = pending[1] and pending[1][4]
    end
  end
  return deliveries
end

local function forget(key, ids)
  in_chunks(ids, function(chunk)
    redis.call('XACK', key, GROUP, unpack(chunk))
    redis.call('XDEL', key, unpack(chunk))
  end)
end

-- Returns what a consumer holds, in order, and adds `failures` to the count of failed deliveries of each.
local function give_back(queue, consumer, failures)
  local key, returned = prefix .. queue, 0
  while true do
    local pending = redis.call('XPENDING', key, GROUP, '-', '+', 500, consumer)
    if #pending == 0 then break end
    for _, entry in ipairs(pending) do
      redis.call('XCLAIM', key, GROUP, RETURNED, 0, entry[1], 'RETRYCOUNT', entry[4] + failures, 'JUSTID')
    end
    -- The claim of an entry that was deleted by hand may leave it pending: it must not be met again.
    local left = redis.call('XPENDING', key, GROUP, '-', '+', 1, consumer)
    if #left > 0 and left[1][1] == pending[1][1] then redis.call('XACK', key, GROUP, left[1][1]) end
    returned = returned + #pending
  end
  -- Only without pending entries: with them they would be lost for all consumers (github.com/redis/redis/issues/9745).
  redis.call('XGROUP', 'DELCONSUMER', key, GROUP, consumer)
  redis.call('ZREM', key .. ':consumers', consumer)
  return returned
end

-- Returns what consumers hold whose lease has ended, and those that never had one and have been silent for as long.
local function sweep(queue, lease_ms)
  local key, now, swept = prefix .. queue, now_ms(), {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key .. ':consumers', '-inf', now)) do
    swept[#swept + 1] = {name, give_back(queue, name, 1)}
  end
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', key, GROUP)) do
    local facts = {}
    for index = 1, #info, 2 do facts[info[index]] = info[index + 1] end
    local lease = redis.call('ZSCORE', key .. ':consumers', facts.name)
    if not lease and facts.name ~= RETURNED and facts.idle > lease_ms then
      swept[#swept + 1] = {facts.name, give_back(queue, facts.name, 1)}
    end
  end
  return swept
end

local routes = {}
-- The queues that a message of this exchange and key reaches; false when there is no such exchange.
local function route(exchange, key)
  local name = exchange .. '\\0' .. key
  if routes[name] == nil then
    local kind = redis.call('HGET', topology, 'x:' .. exchange)
    if not kind then
      routes[name] = false
    else
      local bound = redis.call('HGET', topology, 'b:' .. exchange .. '\\0' .. (kind == 'fanout' and '' or key))
      routes[name] = bound and cjson.decode(bound) or {}
    end
  end
  return routes[name]
end

local function arguments(queue)
  local stored = redis.call('HGET', topology, 'q:' .. queue)
  return stored and cjson.decode(stored) or {}
end
"""

PUBLISH: Final = RedisScript(
    COMMON
    + """
-- ARGV: prefix, dedupe window in ms, then of each run of messages: exchange, key, repeat ('1' or ''), number of messages, and
-- idempotency key, meta, body of each. Every argument of a script costs the server as much as its bytes.
-- Returns nothing if all are stored, else the outcome of each.
local SPAN = 10000
local now, window = now_ms(), tonumber(ARGV[2])
local doing, targets = '', {}

-- A queue, how many messages it still takes, and the idempotency keys of those that it got and that are not stored yet.
local function target_of(queue)
  local target = targets[queue]
  if not target then
    target = {queue = queue, key = prefix .. queue, room = math.huge, keys = {}}
    local limit = tonumber(arguments(queue)['x-max-length'])
    if limit then
      doing = 'XLEN ' .. target.key
      target.room = limit - redis.call('XLEN', target.key)
    end
    targets[queue] = target
  end
  return target
end

local function targets_of(exchange, key)
  doing = 'HGET ' .. topology
  local queues, found = route(exchange, key), {}
  if queues == false then return 'no exchange' end
  for index, queue in ipairs(queues) do found[index] = target_of(queue) end
  return #found > 0 and found or 'unroutable'
end

-- The set of the keys that were stored in one span, filled by one call: one Redis key for each idempotency key would take as
-- long as the message itself.
local function keys_of(target, spans_ago)
  return target.key .. ':idemp:' .. string.format('%.0f', math.floor(now / SPAN) - spans_ago)
end

local function remember(target)
  if #target.keys == 0 then return end
  -- Without its key a repeat is stored twice, which the reader recognises: no reason to call this a failure.
  in_chunks(target.keys, function(chunk) optional('SADD', keys_of(target, 0), unpack(chunk)) end)
  optional('PEXPIRE', keys_of(target, 0), window + SPAN)
  target.keys = {}
end

local function is_stored(target, idempotency)
  remember(target)
  for spans_ago = 0, math.ceil(window / SPAN) do
    if optional('SISMEMBER', keys_of(target, spans_ago), idempotency) == 1 then return true end
  end
  return false
end

local function store(found, idempotency, is_repeat, meta, body)
  for _, target in ipairs(found) do
    if target.room <= 0 then return 'full ' .. target.queue end
  end
  for _, target in ipairs(found) do
    if not (is_repeat and idempotency ~= '' and is_stored(target, idempotency)) then
      local reply = redis.pcall('XADD', target.key, '*', 'body', body, 'meta', meta)
      if type(reply) == 'table' then return is_denial(reply.err) and 'denied XADD ' .. target.key or 'error ' .. reply.err end
      target.room, target.got = target.room - 1, true
      if idempotency ~= '' then target.keys[#target.keys + 1] = idempotency end
    end
  end
  return ''
end

local outcomes, all_stored, at = {}, true, 3
while at < #ARGV do
  local done, found = pcall(targets_of, ARGV[at], ARGV[at + 1])
  if not done then
    local why = tostring(type(found) == 'table' and found.err or found)
    found = is_denial(why) and 'denied ' .. doing or 'error ' .. why
  end
  local is_repeat, first = ARGV[at + 2] == '1', at + 4
  at = first + 3 * ARGV[at + 3]
  for of = first, at - 1, 3 do
    local outcome = type(found) == 'string' and found or store(found, ARGV[of], is_repeat, ARGV[of + 1], ARGV[of + 2])
    outcomes[#outcomes + 1] = outcome
    all_stored = all_stored and outcome == ''
  end
end
for _, target in pairs(targets) do
  -- Wakes one waiting consumer of the queue, which wakes another one if it cannot take all.
  if target.got then optional('ZADD', target.key .. ':new', 0, '1') end
  remember(target)
end
if denied == '' and all_stored then return {} end
if denied ~= '' then outcomes[#outcomes + 1] = denied end
return outcomes
"""
)
