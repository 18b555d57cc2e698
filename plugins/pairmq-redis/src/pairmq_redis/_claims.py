"""Claims that several consumers share, in Redis: one small key for each message.

The key holds ``held`` and the owner's token, or ``done``, and expires by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.model import ConfigurationError
from pairmq.transport import Claim, ClaimStore, Scope
from pairmq_redis._fakeredis import FakeRedisTransport
from pairmq_redis._scripts import Script
from pairmq_redis._transport import RedisTransport, StreamsTransport

_LONGEST_PREFIX = 100

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


class RedisClaims(ClaimStore):
    """A store for `pairmq.Deduplicator` that all consumers of a queue share.

    Args:
        url: ``redis://``, ``rediss://`` or ``fakeredis://``, as for the transport; its own connection. With
            ``wait_replicas`` in it, handling a message is confirmed by so many replicas.
        prefix: of the keys, to distinguish them from others; 1 to 100 characters of printable ASCII.

    Raises:
        ConfigurationError: the URL can't work, or the prefix is invalid.

    A key lives as long as its lease or window, by the server's clock, so that the memory needed is that of the ids of
    one window: about 200 bytes each. A server that evicts keys (``maxmemory-policy``), or that loses its last writes in
    a crash (``appendfsync``), forgets ids, and copies of those are handled again.
    """

    def __init__(self, url: str, *, prefix: str = "pairmq:once:") -> None:
        if not (1 <= len(prefix) <= _LONGEST_PREFIX and prefix.isascii() and prefix.isprintable()):
            raise ConfigurationError(f"prefix must have 1 to {_LONGEST_PREFIX} characters of printable ASCII")
        in_process = url.lower().startswith("fakeredis:")
        self._transport: StreamsTransport = FakeRedisTransport(url) if in_process else RedisTransport(url)
        self._context = self._transport._context
        self._prefix = prefix
        self._scope = Scope(self._transport.scope, "use claims")

    async def claim(self, key: str, token: str, lease: float) -> Claim:
        reply = await self._run(CLAIM, key, (token.encode(), _milliseconds(lease)), "claim a message")
        return Claim(reply.decode()) if isinstance(reply, bytes) else Claim.HELD

    async def renew(self, key: str, token: str, lease: float) -> bool:
        return bool(await self._run(RENEW, key, (token.encode(), _milliseconds(lease)), "renew a claim"))

    async def confirm(self, key: str, token: str, window: float) -> bool:
        arguments = (token.encode(), _milliseconds(window))
        return bool(await self._run(CONFIRM, key, arguments, "note a handled message", replicate=True))

    async def release(self, key: str, token: str) -> None:
        await self._run(RELEASE, key, (token.encode(),), "give a claim back")

    async def close(self) -> None:
        await self._transport.close()

    def __repr__(self) -> str:
        return f"RedisClaims({self._transport.endpoint.url!r})"

    async def _run(
        self, script: Script, key: str, arguments: Sequence[bytes], doing: str, *, replicate: bool = False
    ) -> object:
        keys = ((self._prefix + key).encode(),)
        context = self._context
        return await context.script(context.control, self._scope, script, keys, arguments, doing, replicate=replicate)


def _milliseconds(seconds: float) -> bytes:
    """For PX, which accepts at least 1, and at most what fits into 63 bits beside the present time."""
    return b"%d" % min(max(1, round(seconds * 1000)), 10**15)
