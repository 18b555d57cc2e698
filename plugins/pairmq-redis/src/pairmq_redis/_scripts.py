"""The Lua scripts: everything that must happen in one step, in the server.

Every script about a source gets the same five keys (`SourceKeys.keys`): the stream that is read, the
dead-letter stream, meta, due, waiting; and begins its arguments with mode (queue, topic or dead), group and
consumer.

Time is the server's clock throughout, so that clients' clocks don't matter: a lock is the idle time of an
entry in its group's pending list, a message's age is that of its id.

Numbers are passed to Redis through ``%.0f``, because Lua formats large ones in a way that Redis does not
parse.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    text: bytes
    sha: bytes

    @classmethod
    def of(cls, *parts: str) -> Script:
        text = "\n".join(parts).encode()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


_script = Script.of


_ERROR_TEXT = """
-- The text of an error that redis.pcall returned; nil when it returned none. Not every server has it as a string.
local function error_text(reply)
  if type(reply) == 'table' and reply.err then return tostring(reply.err) end
end
"""

_RIGHTS = """
-- What a script did before one of its commands is refused stays done: what it adds and could not remove would be there
-- again with each try. So both are tried first, where they do nothing; adding comes first, as Redis looks at its memory
-- only until a script's first write.
local function may_add(key) redis.call('XADD', key .. ':none', 'NOMKSTREAM', '*', 'b', '') end
local function may_remove(key) redis.call('XDEL', key, '0-0') end
"""

_SOURCE = (
    _RIGHTS
    + """
local stream, dead, meta, due, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local mode, group, me = ARGV[1], ARGV[2], ARGV[3]

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local set = redis.call('HMGET', meta, 'lock', 'max', 'ttl', 'bury', 'single')
if not set[1] then return redis.error_reply('NOENTITY no such queue or topic') end
local lock, max, default_ttl, bury_expired = tonumber(set[1]), tonumber(set[2]), tonumber(set[3]), set[4] == '1'

local function num(n) return string.format('%.0f', n) end

local function id_parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function after(a, b)  -- whether id a is greater than id b
  local a_ms, a_seq = id_parts(a)
  local b_ms, b_seq = id_parts(b)
  return a_ms > b_ms or (a_ms == b_ms and a_seq > b_seq)
end

local function info(flat)  -- XINFO's names and values as a table
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

-- Remove entries permanently. A topic's entry is removed only once no other subscription needs it: none has still
-- to read it (its last id is smaller) or has it pending. That is checked per entry and other subscription; for a
-- queue it costs nothing.
local function drop(ids)
  if #ids == 0 then return end
  if mode ~= 'topic' then
    -- In this order, as a user may lack one of the two rights: an entry that is acknowledged and stays would be counted
    -- forever, and one that is gone and still pending is cleared away by the next take.
    redis.call('XDEL', stream, unpack(ids))
    redis.call('XACK', stream, group, unpack(ids))
    return
  end
  redis.call('XACK', stream, group, unpack(ids))
  local others = {}
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local other = info(flat)
    if other['name'] ~= group then others[#others + 1] = other end
  end
  for _, id in ipairs(ids) do
    local needed = false
    for _, other in ipairs(others) do
      if after(id, other['last-delivered-id']) then
        needed = true
      elseif other['pending'] > 0 and #redis.call('XPENDING', stream, other['name'], id, id, 1) > 0 then
        needed = true
      end
      if needed then break end
    end
    if not needed then redis.call('XDEL', stream, id) end
  end
end

-- The first fields of an entry, which are all that a message of PairMQ has: Lua can't unpack thousands.
local function head(fields)
  local first = {}
  for i = 1, math.min(#fields, 2000) do first[i] = fields[i] end
  return first
end

-- Move an entry to the dead-letter stream. The marks follow the raw fields, so that they override
-- forged ones.
local function bury(id, fields, reason, description, count)
  local entry = head(fields)
  local marks = {'!reason', reason, '!description', description, '!at', num(now), '!id', id, '!count', num(count)}
  for _, mark in ipairs(marks) do entry[#entry + 1] = mark end
  may_add(dead)
  may_remove(stream)
  redis.call('XACK', stream, group, '0-0')
  redis.call('XADD', dead, '*', unpack(entry))
  drop({id})
end

-- A message lives as long as its own setting (its first field, see the codec) and its queue allow.
local function expired(id, fields)
  if mode == 'dead' then return false end
  local ttl = default_ttl
  if fields[1] == 't' then
    local own = tonumber(fields[2])
    if own and (not ttl or own < ttl) then ttl = own end
  end
  return ttl and id_parts(id) + ttl * 1000 <= now
end

local function expire(id, fields, count)
  if bury_expired then
    bury(id, fields, 'expired', 'its time-to-live ran out before it was received', count)
  else
    drop({id})
  end
end

-- The pending record of an entry if this consumer holds its lock, else nil. The count identifies the
-- delivery: a stale one settles nothing. `known` has records that were read a moment ago, by id.
local function held(id, count, known)
  local pending = known and known[id] or redis.call('XPENDING', stream, group, id, id, 1, me)[1]
  if pending and pending[3] < lock and pending[4] == tonumber(count) then return pending end
end

-- XINFO's record of this group, or nil.
local function group_info()
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local found = info(flat)
    if found['name'] == group then return found end
  end
end
local missing = redis.error_reply('NOENTITY no such queue or subscription')

-- Release an entry: 'returned' holds it with a lock that ended in 1970, so that the next receiver takes it.
local function give_back(id, count)
  redis.call('XCLAIM', stream, group, 'returned', 0, id, 'TIME', 1, 'RETRYCOUNT', num(count), 'JUSTID')
end
"""
)

TAKE = _script(
    _ERROR_TEXT,
    _SOURCE,
    """
-- ARGV: 4 how many; 5 no lock ends before this instant, as the last take returned (0: check); 6 poll interval in ms;
-- 7 '1': clean up consumers without work; 8 '1': what this consumer has pending but is not among 9.. was never
-- returned to a caller
local want, sweep_at, poll = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local out = {}

-- Large messages are returned fewer at a time, so that a reply stays near 8 MB, whatever was asked for.
local room, used, largest = 8388608, 0, 1
local function hand_out(id, count, fields)
  out[#out + 1] = {id, count, fields}
  local size = 0
  for _, field in ipairs(fields) do size = size + #field end
  used, largest = used + size, math.max(largest, size)
end

-- 1. Scheduled messages that are due are added to the stream. Where that fails (out of memory, or the stream is
-- missing) they stay, and are tried again after the poll interval.
local stuck = false
if mode ~= 'dead' then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', num(now), 'LIMIT', 0, 100)) do
    local ms, seq = string.match(member, '^(%d+)-0*(%d+)$')
    -- Any client may have added a member that is not an id: it must not stop the others.
    local id = ms and #ms <= 15 and #seq <= 19 and ms .. '-' .. seq
    local found = id and redis.call('XRANGE', waiting, id, id)[1]
    if found then
      local added = redis.pcall('XADD', stream .. ':none', 'NOMKSTREAM', '*', 'b', '')
      if not error_text(added) then
        may_remove(waiting)
        added = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', unpack(head(found[2])))
      end
      local problem = error_text(added)
      if problem and not string.find(problem, 'OOM', 1, true) then return redis.error_reply(problem) end
      stuck = type(added) ~= 'string'
      if stuck then break end
      redis.call('XDEL', waiting, id)
    end
    redis.call('ZREM', due, member)
  end
end

-- 2. An interrupted receive may have left entries with this consumer that were never returned: they are released
-- as if never delivered, since an outage must not use up a message's deliveries.
if ARGV[8] == '1' then
  local given = {}
  for i = 9, #ARGV do given[ARGV[i]] = true end
  local from, page = '-'
  repeat
    page = redis.call('XPENDING', stream, group, from, '+', 1000, me)
    for _, pending in ipairs(page) do
      if not given[pending[1]] then give_back(pending[1], math.max(pending[4] - 1, 0)) end
      from = '(' .. pending[1]
    end
  until #page < 1000
end

-- A queue with one consumer at a time returns nothing to any other while one holds a lock.
local single = mode == 'queue' and set[5] == '1'
if single then
  for _, other in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    if other[1] ~= me and other[1] ~= 'returned' then
      for _, pending in ipairs(redis.call('XPENDING', stream, group, '-', '+', other[2], other[1])) do
        -- A lock that ends now is held: fakeredis' IDLE, below, leaves it out, and newer ones would pass it.
        if pending[3] <= lock then return {num(now), '0', num(now + lock - pending[3] + 1), num(lock), 0, {}, 1, 0} end
      end
    end
  end
end

-- 3. Released entries, and those whose lock ended, are redelivered. The second needs a walk through all that
-- is pending, so it is done only when a lock may have ended; but always where nothing newer may be delivered first.
local sweep = single or now >= sweep_at
local again
if sweep then
  again = redis.call('XPENDING', stream, group, 'IDLE', num(lock), '-', '+', want)
else
  again = redis.call('XPENDING', stream, group, '-', '+', want, 'returned')
end
local taken = 0
while taken < #again and used < room do
  taken = taken + 1
  local id, count = again[taken][1], again[taken][4]
  local entry = redis.call('XCLAIM', stream, group, me, 0, id)[1]
  if not entry then
    drop({id})  -- deleted by another client
  elseif expired(id, entry[2]) then
    expire(id, entry[2], count)
  elseif mode ~= 'dead' and max and count >= max then
    bury(id, entry[2], 'max-delivery-count', 'it was delivered ' .. num(count) .. ' times and never completed', count)
  else
    hand_out(id, count + 1, entry[2])
  end
end
if sweep then
  if #again == want or taken < #again then
    sweep_at = 0  -- there may be more
  else
    sweep_at = now + lock  -- locks that begin from now on end no earlier
    local pending = redis.call('XPENDING', stream, group, '-', '+', 100)
    for _, p in ipairs(pending) do sweep_at = math.min(sweep_at, now + math.max(lock - p[3], 1)) end
    if #pending == 100 then sweep_at = math.min(sweep_at, now + poll) end
  end
end

-- 4. New ones. Those that expired unread are replaced by more, up to a bound, as no other client is served meanwhile.
-- Few at a time, since what is read is returned: the size of one message does not predict that of the next ones.
local step, spent, more = 1, 0, false
while #out < want and used < room and not (single and #again == want) do
  if spent >= 1000 then
    more = true
    break
  end
  local count = math.min(want - #out, step)
  local read = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', count, 'STREAMS', stream, '>')
  if not read or not read[1] then break end
  local fresh = type(read[1]) == 'table' and read[1][2] or read[2]  -- the second is fakeredis' form
  for _, entry in ipairs(fresh) do
    if expired(entry[1], entry[2]) then
      expire(entry[1], entry[2], 0)
      spent = spent + 1
    else
      hand_out(entry[1], 1, entry[2])
    end
  end
  if #fresh < count then break end
  step = math.max(1, math.min(2 * step, 8, math.floor((room - used) / largest)))
end

-- 5. Dead receivers' names are removed once nothing is pending for them; a live one's name is added again by Redis.
if ARGV[7] == '1' then
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local consumer = info(flat)
    local name = consumer['name']
    local stale = consumer['pending'] == 0 and consumer['idle'] > math.max(3 * lock, 300000)
    if stale and name ~= me and name ~= 'returned' then redis.call('XGROUP', 'DELCONSUMER', stream, group, name) end
  end
end

local next_at = sweep_at
if mode ~= 'dead' then
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if first[2] and not stuck then next_at = math.min(next_at, tonumber(first[2])) end
end
local all_new = #again == 0 and not single and not default_ttl and mode ~= 'dead'
return {
  num(now), num(sweep_at), num(next_at), num(lock), more and 1 or 0, out, single and 1 or 0, all_new and 1 or 0
}
""",
)
"""Return a receiver's next messages: now, next sweep, next event, lock duration (ms), 1 when more expired ones
are to be removed first, entries (id, count, fields), 1 for a queue with one consumer at a time, 1 when nothing was to
be redelivered and a message's own time-to-live is all that may end it."""

COMPLETE = _script(
    _SOURCE,
    """
local done, answer, known = {}, {}, {}
local asked = (#ARGV - 3) / 2
if asked > 2 then
  -- They are usually adjacent: one query finds them all, and those that it does not find are queried one by one.
  local from, to = ARGV[4], ARGV[#ARGV - 1]
  for _, pending in ipairs(redis.call('XPENDING', stream, group, from, to, 2 * asked, me)) do
    known[pending[1]] = pending
  end
end
for i = 4, #ARGV, 2 do
  if held(ARGV[i], ARGV[i + 1], known) then
    done[#done + 1] = ARGV[i]
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
drop(done)
return answer
""",
)
"""Remove deliveries (id and count of each); 1 for each that was held, else 0."""

ABANDON = _script(
    _SOURCE,
    """
local pending = held(ARGV[4], ARGV[5])
if not pending then return 0 end
if mode ~= 'dead' and max and pending[4] >= max then
  local entry = redis.call('XRANGE', stream, ARGV[4], ARGV[4])[1]
  if entry then
    local description = 'it was delivered ' .. num(pending[4]) .. ' times and never completed'
    bury(ARGV[4], entry[2], 'max-delivery-count', description, pending[4])
    return 1
  end
end
give_back(ARGV[4], pending[4])
return 1
""",
)
"""Release a delivery, or dead-letter it when that was its last one."""

DEAD_LETTER = _script(
    _SOURCE,
    """
local pending = held(ARGV[4], ARGV[5])
if not pending then return 0 end
local entry = redis.call('XRANGE', stream, ARGV[4], ARGV[4])[1]
if not entry then return 0 end
bury(ARGV[4], entry[2], ARGV[6], ARGV[7], pending[4])
return 1
""",
)
"""Move a delivery to the dead-letter stream with reason and description."""

EXPIRE = _script(
    _SOURCE,
    """
for i = 4, #ARGV do
  local entry = held(ARGV[i], 1) and redis.call('XRANGE', stream, ARGV[i], ARGV[i])[1]
  if entry then expire(ARGV[i], entry[2], 0) end
end
return 1
""",
)
"""Remove deliveries that a blocking read returned although they had expired."""

RENEW = _script(
    _SOURCE,
    """
if not held(ARGV[4], ARGV[5]) then return 0 end
if #redis.call('XCLAIM', stream, group, me, 0, ARGV[4], 'JUSTID') == 0 then return 0 end  -- the entry was deleted
return num(now)
""",
)
"""Restart a lock; the server's instant in ms, or 0."""

RELEASE = _script(
    _SOURCE,
    """
while true do
  local mine = redis.call('XPENDING', stream, group, '-', '+', 1000, me)
  if #mine == 0 then break end
  for _, pending in ipairs(mine) do give_back(pending[1], pending[4]) end
end
redis.call('XGROUP', 'DELCONSUMER', stream, group, me)
return 1
""",
)
"""Release all that a closing receiver holds, and delete its consumer."""

COUNT = _script(
    _SOURCE,
    """
local this = group_info()
if not this then return missing end
local pending, last = this['pending'], this['last-delivered-id']
-- XPENDING treats IDLE 0 as no limit at all; a lock is never 0.
local free = 0
if pending > 0 then free = #redis.call('XPENDING', stream, group, 'IDLE', num(lock), '-', '+', pending) end
local unread
if mode == 'topic' then
  -- Other subscriptions' entries are in the same stream, so only a walk gives the exact number.
  unread = 0
  local from = '(' .. last
  while true do
    local part = redis.call('XRANGE', stream, from, '+', 'COUNT', 1000)
    if #part == 0 then break end
    unread = unread + #part
    from = '(' .. part[#part][1]
  end
else
  unread = redis.call('XLEN', stream) - pending
end
local scheduled, buried = 0, 0
if mode ~= 'dead' then
  scheduled = redis.call('ZCARD', due)
  buried = redis.call('XLEN', dead)
end
return {unread + free, pending - free, scheduled, buried}
""",
)
"""Count active, locked, scheduled, dead-lettered."""

POSITIONS = _script(
    _SOURCE,
    """
if mode ~= 'queue' or not group_info() then return missing end
-- What is completed or dead-lettered is removed from the stream: its first entry is the oldest that is not settled.
local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
return {first and first[1] or '', info(redis.call('XINFO', 'STREAM', stream))['last-generated-id']}
""",
)
"""The ids of the oldest entry in the queue, empty for none, and of the newest ever added."""

PEEK = _script(
    _SOURCE,
    """
local want = tonumber(ARGV[4])
local this = group_info()
if not this then return missing end
local out = {}
local function show(entries)
  for _, entry in ipairs(entries) do out[#out + 1] = entry end
end
if mode == 'topic' then
  for _, pending in ipairs(redis.call('XPENDING', stream, group, '-', '+', want)) do
    show(redis.call('XRANGE', stream, pending[1], pending[1]))
  end
  if #out < want then
    show(redis.call('XRANGE', stream, '(' .. this['last-delivered-id'], '+', 'COUNT', want - #out))
  end
else
  show(redis.call('XRANGE', stream, '-', '+', 'COUNT', want))
end
-- What is scheduled stays until a consumer receives, even when it is due: if not shown, it would look lost.
if mode ~= 'dead' and #out < want then
  for _, member in ipairs(redis.call('ZRANGE', due, 0, want - #out - 1)) do
    local ms, seq = string.match(member, '^(%d+)-0*(%d+)$')
    local id = ms and #ms <= 15 and #seq <= 19 and ms .. '-' .. seq
    if id then show(redis.call('XRANGE', waiting, id, id)) end
  end
end
return out
""",
)
"""Show the oldest entries, then those that are scheduled."""

PURGE = _script(
    _SOURCE,
    """
-- The group stays and only its records are removed: destroying it would fail the receivers that wait on it.
local purged = 0
while true do
  local pending = redis.call('XPENDING', stream, group, '-', '+', 1000)
  if #pending == 0 then break end
  local ids = {}
  for i, p in ipairs(pending) do ids[i] = p[1] end
  drop(ids)
  purged = purged + #ids
end
if mode == 'topic' then
  while true do
    local read = redis.call('XREADGROUP', 'GROUP', group, 'returned', 'COUNT', 1000, 'NOACK', 'STREAMS', stream, '>')
    if not read or not read[1] then break end
    local ids = {}
    for i, entry in ipairs(type(read[1]) == 'table' and read[1][2] or read[2]) do ids[i] = entry[1] end
    drop(ids)
    purged = purged + #ids
  end
else
  purged = purged + redis.call('XLEN', stream)
  redis.call('XTRIM', stream, 'MAXLEN', 0)
end
if mode == 'queue' then
  purged = purged + redis.call('ZCARD', due)
  redis.call('DEL', due, waiting)
end
return purged
""",
)
"""Delete all that a source holds, locked or not; a topic's scheduled messages belong to all subscriptions and stay."""

_GROUPS = """
-- The error when a key holds something other than a stream, so that nothing is half created.
local function foreign(key)
  local kind = redis.call('TYPE', key)
  if type(kind) == 'table' then kind = kind.ok end
  if kind ~= 'none' and kind ~= 'stream' then
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
end

-- Create a consumer group, and its stream if missing; returns the error if that fails.
local function group(key, name, from)
  local made = redis.pcall('XGROUP', 'CREATE', key, name, from, 'MKSTREAM')
  local problem = error_text(made)
  if problem and not string.find(problem, 'BUSYGROUP', 1, true) then return redis.error_reply(problem) end
end
"""

CREATE = _script(
    _ERROR_TEXT,
    _GROUPS,
    """
-- KEYS: stream, dead, meta; ARGV: kind, lock ms, max, ttl, bury, settings as JSON, group, single
local clock = redis.call('TIME')
local kind = redis.call('HGET', KEYS[3], 'kind')
if kind and kind ~= ARGV[1] then
  return redis.error_reply('OTHERKIND the name belongs to a ' .. kind)
end
if kind and (kind == 'topic' or redis.call('EXISTS', KEYS[1]) == 1) then return 0 end
local problem = foreign(KEYS[1]) or foreign(KEYS[2])
if problem then return problem end
if ARGV[1] == 'queue' then
  problem = group(KEYS[1], ARGV[7], '0') or group(KEYS[2], ARGV[7], '0')
  if problem then return problem end
end
redis.call('HSET', KEYS[3], 'kind', ARGV[1], 'lock', ARGV[2], 'bury', ARGV[5], 'settings', ARGV[6],
  'created', clock[1])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[3], 'max', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], 'ttl', ARGV[4]) end
if ARGV[8] == '1' then redis.call('HSET', KEYS[3], 'single', '1') end
return 1
""",
)
"""Create a queue with its dead-letter queue, or a topic, whose stream is created with its first subscription."""

SUBSCRIBE = _script(
    _ERROR_TEXT,
    _GROUPS,
    """
-- KEYS: stream, the subscription's dead, meta; ARGV: subscription, group of dead-letter streams
if redis.call('HGET', KEYS[3], 'kind') ~= 'topic' then return redis.error_reply('NOENTITY no such topic') end
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for i = 1, #flat, 2 do
      if flat[i] == 'name' and flat[i + 1] == ARGV[1] then return 0 end
    end
  end
end
local problem = foreign(KEYS[1]) or foreign(KEYS[2]) or group(KEYS[2], ARGV[2], '0') or group(KEYS[1], ARGV[1], '$')
return problem or 1
""",
)
"""Create a subscription, which gets what is sent from now on."""

DELETE = _script(
    """
-- KEYS: stream, dead, meta, due, waiting; ARGV: kind
if redis.call('HGET', KEYS[3], 'kind') ~= ARGV[1] then return 0 end
if ARGV[1] == 'topic' and redis.call('EXISTS', KEYS[1]) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for i = 1, #flat, 2 do
      if flat[i] == 'name' then redis.call('DEL', KEYS[2] .. ':' .. flat[i + 1]) end
    end
  end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return 1
"""
)
"""Delete an entity with all that it holds."""

SEND_IN_ORDER = _script(
    _ERROR_TEXT,
    """
-- KEYS: stream; ARGV: of each message the number of its fields' strings, and these
-- Returns how many were stored: the first ones, as none is behind one that is not. The first one's error is an error.
local at, stored = 1, 0
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local reply = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', '*', unpack(ARGV, at + 1, at + count))
  local problem = error_text(reply)
  if problem and stored == 0 then return redis.error_reply(problem) end
  if problem or not reply then return stored end
  at, stored = at + count + 1, stored + 1
end
return stored
""",
)
"""Store several messages, in order, and none behind one that fails."""

SCHEDULE = _script(
    """
-- KEYS: stream, due, waiting, meta; ARGV: due in ms, kind, fields
-- Returns 1 when stored, 2 when no subscription would keep it, 0 when there is no such entity.
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[2] == 'topic' and redis.call('HGET', KEYS[4], 'kind') == 'topic' then return 2 end
  return 0
end
local clock = redis.call('TIME')
local fields = {}
for i = 3, #ARGV do fields[i - 2] = ARGV[i] end
if tonumber(ARGV[1]) <= tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) then
  redis.call('XADD', KEYS[1], '*', unpack(fields))
else
  -- Equal scores are ordered by name, so the number in it is padded: messages due at the same time keep their
  -- order.
  local id = redis.call('XADD', KEYS[3], '*', unpack(fields))
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  redis.call('ZADD', KEYS[2], ARGV[1], ms .. '-' .. string.format('%010d', tonumber(seq)))
end
return 1
"""
)
"""Store a scheduled message until its time."""

PROBE = _script(
    _RIGHTS,
    """
-- KEYS: stream, meta; ARGV: kind
-- A message is written to the stream itself and removed in the same step: waiting readers are served only
-- after a script.
local missing = redis.error_reply('NOENTITY no such queue or topic')
if redis.call('HGET', KEYS[2], 'kind') ~= ARGV[1] then return missing end
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[1] == 'topic' then
    redis.call('HSET', KEYS[2], 'probed', redis.call('TIME')[1])
    return 1
  end
  return missing
end
may_add(KEYS[1])
may_remove(KEYS[1])
redis.call('XDEL', KEYS[1], redis.call('XADD', KEYS[1], '*', 'b', ''))
return 1
""",
)
"""Prove that the entity accepts writes."""
