"""A queue in Redis whose clock is turned by hand: no busy machine ends a lock, and no test waits for the end of one."""

from __future__ import annotations

import asyncio

from pairmq.model import Delivery, Entity, Source
from pairmq.transport import Receiver, Scope, Transport

HELD = 300.0
"""Seconds a lock lasts: longer than any test, also on a machine that stands still for a while."""

WAIT = 100.0
"""Seconds to wait for what must come; nothing waits that long."""


GROUP = b"pairmq"
"""The consumer group of a queue."""


def key(entity: Entity, part: str) -> bytes:
    """A key of an entity: its ``queue`` or ``topic`` (a stream), ``dead``, ``waiting``, ``due`` or ``meta``.

    Their names are in what servers hold already, and in docs/reference/envelope.md: they stay as they are.
    """
    return f"pairmq:{{{entity.path}}}:{part}".encode()


async def end_locks(transport: Transport, queue: Entity, *receivers: Receiver) -> None:
    """Let all locks of a queue end now: its entries have been held since 1970.

    Args:
        transport: of the queue's broker.
        queue: whose.
        receivers: of which some may have looked for ends of locks before; they look again.
    """
    control = transport._context.control  # type: ignore[attr-defined]
    stream = key(queue, "queue")
    [held] = await control.call([(b"XPENDING", stream, GROUP, b"-", b"+", b"1000")], Scope())
    commands = []
    for id_, consumer, _, count in held:
        claim = (b"XCLAIM", stream, GROUP, consumer, b"0", id_)
        commands.append((*claim, b"TIME", b"1", b"RETRYCOUNT", b"%d" % count, b"JUSTID"))
    if commands:
        replies = await control.call(commands, Scope())
        assert all(isinstance(reply, list) for reply in replies), replies
    for receiver in receivers:
        receiver._sweep_at = b"0"  # type: ignore[attr-defined]


async def hasten(transport: Transport, queue: Entity, seconds: float) -> None:
    """Let everything that a queue has scheduled be due so many seconds earlier."""
    control = transport._context.control  # type: ignore[attr-defined]
    due = key(queue, "due")
    [members] = await control.call([(b"ZRANGE", due, b"0", b"-1")], Scope())
    earlier = [(b"ZINCRBY", due, b"%d" % (-seconds * 1000), member) for member in members]
    assert not [reply for reply in await control.call(earlier, Scope()) if isinstance(reply, Exception)]


async def take(receiver: Receiver, count: int) -> list[Delivery]:
    """Exactly so many messages, in as many calls as it takes."""
    found: list[Delivery] = []
    async with asyncio.timeout(WAIT):
        while len(found) < count:
            found += await receiver.receive(count - len(found), WAIT)
    return found


async def dead_letters(transport: Transport, queue: Entity, count: int) -> None:
    """Wait until a queue has so many dead letters."""
    async with asyncio.timeout(WAIT):
        while (await transport.admin.counts(Source(queue))).dead_letter != count:
            await asyncio.sleep(0.01)
