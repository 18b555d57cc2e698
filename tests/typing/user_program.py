"""What a user's program may write: `make check` checks it with mypy, and nothing runs it.

What a type checker has to refuse has a ``type: ignore``, which is itself an error once it is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type
from uuid import UUID

from pairmq import Entity, EntityKind, Message, Pair, PairDelivery, PairOptions, Receipt, SendError
from pairmq.model import PropertyInput, PropertyValue, Source
from pairmq.model.events import Event
from pairmq.sync import Pair as BlockingPair


def messages() -> None:
    assert_type(Message(bytearray(b"x")).body, bytes)
    assert_type(Message(memoryview(b"x"), time_to_live=timedelta(minutes=1)).time_to_live, float | None)
    Message(b"x", time_to_live=5, scheduled_enqueue_at=datetime.now(UTC), priority=9)
    Message("x")  # type: ignore[arg-type]
    Message(b"x", time_to_live="5s")  # type: ignore[arg-type]


def properties(tags: list[str], nested: dict[str, list[int]], own: Mapping[str, PropertyInput]) -> None:
    made = Message(b"x", application_properties={"tags": tags, "nested": nested, "own": own})
    assert_type(made.application_properties, Mapping[str, PropertyValue])
    Message(
        application_properties={"d": Decimal("1.5"), "u": UUID(int=1), "at": datetime.now(UTC), "n": None, "b": b""}
    )
    Message(application_properties=made.application_properties)
    Message(application_properties={"n": 1})
    Message(application_properties=dict.fromkeys(tags, 1))
    Message(application_properties={"o": object()})  # type: ignore[dict-item]
    Message(application_properties={1: "x"})  # type: ignore[dict-item]


def entities() -> None:
    assert_type(Entity("prices", "topic").kind, EntityKind)
    Source(Entity("prices", kind="topic"), "audit")
    Entity("prices", EntityKind.TOPIC)
    Entity("prices", "subject")  # type: ignore[arg-type]


def options() -> PairOptions:
    made = PairOptions(failover_interval=timedelta(seconds=5), continuity=["orders"], allowed_entities={"orders"})
    assert_type(made.failover_interval, float)
    PairOptions(failover_interval=5, ordering="session", while_failing="raise")
    PairOptions(failover_interval="5s")  # type: ignore[arg-type]
    PairOptions(continuity="orders")  # type: ignore[arg-type]
    PairOptions(ordering="strict")  # type: ignore[arg-type]
    return replace(made, failover_interval=10)


async def asynchronously(pair: Pair) -> None:
    async with Pair.connect("memory://a", "memory://b", failover_interval=timedelta(seconds=5)) as opened:
        sender = opened.sender("orders")
        assert_type(await sender.send(Message(b"x"), timeout=5), Receipt)
        assert_type(await sender.send_batch([Message(b"x")]), list[Receipt | SendError])
        async for result in sender.send_stream([Message(b"x")]):
            assert_type(result, Receipt | SendError)
        receiver = opened.receiver("orders")
        for delivery in await receiver.receive(10, wait=5):
            assert_type(delivery.body, bytes)
            await delivery.complete()
        async for each in opened.receiver("prices", subscription="audit"):
            assert_type(each, PairDelivery)
        async for event in opened.events():
            assert_type(event, Event)
        opened.subscribe(lambda event: print(event.pair))
        opened.consumer("orders", handle, subscription="audit")
    await pair.check("orders", Entity("prices", "topic"))


def handle(delivery: PairDelivery) -> None:
    print(delivery.message.application_properties.get("tenant"))


def blocking() -> Sequence[Any]:
    with BlockingPair.connect("memory://a", "memory://b", options=options()) as pair:
        receipt = pair.sender("orders").send(Message(b"x"), timeout=5)
        assert_type(receipt, Receipt)
        pair.primary.admin.create(Entity("orders"))
        return pair.receiver("orders").receive(10, wait=5)
