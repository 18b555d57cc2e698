"""The Lua scripts of claims: a key holds ``held`` and whose claim it is, or ``done``, and ends by itself."""

from __future__ import annotations

from pairmq_redis._scripts import Script

CLAIM = Script.of("""
-- ARGV: 1 whose; 2 the lease in ms
local mine = 'held ' .. ARGV[1]
local value = redis.call('GET', KEYS[1])
if value == 'done' then return 'done' end
if value and value ~= mine then return 'held' end
redis.call('SET', KEYS[1], mine, 'PX', ARGV[2])
return 'won'
""")

RENEW = Script.of("""
-- ARGV: 1 whose; 2 the lease in ms
if redis.call('GET', KEYS[1]) ~= 'held ' .. ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
""")

CONFIRM = Script.of("""
-- ARGV: 1 whose; 2 the window in ms
local value = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
return (value == 'done' or value == 'held ' .. ARGV[1]) and 1 or 0
""")

RELEASE = Script.of("""
-- ARGV: 1 whose
if redis.call('GET', KEYS[1]) == 'held ' .. ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
""")
