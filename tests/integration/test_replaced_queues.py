"""An operator replaces a backlog queue of RabbitMQ while a pair runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pika
import pytest

from pairmq import BacklogUnavailable, Entity, Message, Pair, Route
from pairmq.model.events import Event, RotationChanged, Warned
from pairmq.runner import Clock
from pairmq.testing import memory_broker
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

Hands = Callable[..., Awaitable[None]]
DROPS = {"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "drop-head"}


class LaterClock(Clock):
    """Shows so many seconds more than have passed: a look at a queue counts for a minute."""

    ahead = 0.0

    def now(self) -> float:  # type: ignore[override]
        return super().now() + self.ahead


def replace(server: RabbitServer, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True, arguments=DROPS)


async def test_a_queue_that_drops_messages_gets_none_until_it_is_put_right(
    rabbit_servers: Callable[[int], list[RabbitServer]], hands: Hands
) -> None:
    (west,) = rabbit_servers(1)
    clock = LaterClock()
    seen: list[Event] = []
    changed = asyncio.Event()

    def note(event: Event) -> None:
        seen.append(event)
        changed.set()

    async def until(*wanted: type[Event]) -> None:
        async with asyncio.timeout(60):
            while not any(isinstance(event, wanted) for event in seen):
                changed.clear()
                await changed.wait()
        seen.clear()

    async with Pair.connect(
        memory_broker().url, west.url, backlog_queue_count=1, backlog_retry_interval=0.5, clock=clock
    ) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        pair.hold("orders")
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        pair.subscribe(note)
        queue = pair.backlog_queues[0].path
        await hands(replace, west, queue)  # no send finds it missing
        clock.ahead = 61.0
        with pytest.raises(BacklogUnavailable, match="drops messages that it has accepted"):
            await sender.send(Message(b"2"), timeout=3)
        assert any(isinstance(event, Warned) and queue in event.text for event in seen)
        seen.clear()
        await hands(west.delete_queue, queue)
        await until(RotationChanged)
        assert (await sender.send(Message(b"3"))).route is Route.BACKLOG
