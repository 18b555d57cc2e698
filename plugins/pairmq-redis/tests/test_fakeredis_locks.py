"""Locks of `fakeredis://` at the instant at which they end."""

from __future__ import annotations

import pytest
from fakeredis.model import _stream

from pairmq import Entity, Message
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import QueueProperties


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
