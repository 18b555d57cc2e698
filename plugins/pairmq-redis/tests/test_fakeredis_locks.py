"""Locks of `fakeredis://` at the instant at which they end."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from fakeredis.model import _stream

from pairmq import Entity, Message
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import QueueProperties
from pairmq_redis import _receiver


async def test_nothing_passes_a_lock_of_a_single_consumer_that_ends_now(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, clock = Entity("orders"), [1_800_000_000_000]
    monkeypatch.setattr(_stream, "current_time", lambda: clock[0])
    async with registry.transport("fakeredis://ends-now") as transport:
        await transport.admin.create(queue, QueueProperties(single_consumer=True, lock_duration=5.0))
        await transport.sender(queue).send_batch([Message(body) for body in (b"a", b"b", b"c")])
        first, second = transport.receiver(Source(queue)), transport.receiver(Source(queue))
        assert [each.message.body for each in await first.receive(1, 1.0)] == [b"a"]
        clock[0] += 1000
        assert [each.message.body for each in await first.receive(1, 1.0)] == [b"b"]
        clock[0] += 5000  # the first lock has ended; the second one ends now
        assert await second.receive(3, 0.0) == []
        clock[0] += 1
        assert [each.message.body for each in await second.receive(3, 1.0)] == [b"a", b"b", b"c"]


async def test_a_clock_that_is_set_forward_has_no_lock_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that was cut off releases what the receiver does not know of, and that was forgotten by the clock."""
    queue, ahead = Entity("orders"), [0.0]
    monkeypatch.setattr(_receiver, "MAX_TAKE", 1)
    monkeypatch.setattr(_receiver, "time", SimpleNamespace(time=lambda: time.time() + ahead[0]))
    async with registry.transport("fakeredis://set-forward") as transport:
        await transport.admin.create(queue, QueueProperties())
        await transport.sender(queue).send_batch([Message(b"%d" % number) for number in range(20)])
        receiver = transport.receiver(Source(queue))
        held = [each for _ in range(20) for each in await receiver.receive(1, 1.0)]
        assert len(held) == 20
        ahead[0] = 3600.0
        assert await receiver.receive(1, 0.0) == []
        waiting = asyncio.create_task(receiver.receive(1, 60.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert await receiver.receive(1, 0.0) == []
        assert await receiver.complete_batch(held) == [None] * 20
