"""The frames that settling writes, to a channel that only records them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pamqp.frame
import pytest
from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq_rabbitmq._receiving._settling import Calls, Locked, Settling, Share


class Raw:
    """A driver's channel on which every request is answered."""

    is_closed = False
    number = 1

    def __init__(self) -> None:
        self.connection = SimpleNamespace(channels={1: self})
        self.write_queue: asyncio.Queue[Any] = asyncio.Queue()

    async def rpc(self, _: object) -> Any:
        return SimpleNamespace(message_count=0)

    def written(self) -> list[tuple[str, int, bool]]:
        """The frames so far: name, tag, and whether it is for all up to the tag."""
        found = []
        while not self.write_queue.empty():
            data = self.write_queue.get_nowait().payload
            while data:
                size, _, frame = pamqp.frame.unmarshal(data)
                data = data[size:]
                if isinstance(frame, Basic.Reject):
                    assert frame.requeue
                found.append((frame.name, frame.delivery_tag, getattr(frame, "multiple", False)))
        return found


async def _answered(operation: Any) -> Any:
    return await operation


@pytest.fixture
def raw() -> Raw:
    return Raw()


@pytest.fixture
async def settling(raw: Raw) -> Settling:
    share = Share(("test",), "orders")
    share.release()
    made = Settling(cast("Channel", raw), "orders", cast("Calls", _answered), share, pytest.fail)
    for tag in range(1, 7):
        made.add(Locked(tag, False, b"", b"", 0.0, 60.0))
    return made


def _of(settling: Settling, *tags: int) -> list[Locked]:
    return [settling.unsettled[tag] for tag in tags]


async def test_release_rejects_each_message_separately(settling: Settling, raw: Raw) -> None:
    """From RabbitMQ 4.3 on a nack counts as no delivery, so that `max_delivery_count` would never be reached."""
    await settling.settle(_of(settling, 1, 2, 3, 5), requeue=True).done
    assert raw.written() == [("Basic.Reject", tag, False) for tag in (1, 2, 3, 5)]


async def test_completing_takes_one_frame_for_all_up_to_a_message(settling: Settling, raw: Raw) -> None:
    await settling.settle(_of(settling, 1, 2, 3, 5), requeue=False).done
    assert raw.written() == [("Basic.Ack", 3, True), ("Basic.Ack", 5, False)]


async def test_concurrent_completion_and_release_settle_each_message_as_requested(settling: Settling, raw: Raw) -> None:
    back = settling.settle(_of(settling, 2, 3), requeue=True)
    done = settling.settle(_of(settling, 1, 4, 5), requeue=False)
    await asyncio.gather(back.done, done.done)
    assert raw.written() == [
        ("Basic.Ack", 1, False),
        ("Basic.Reject", 2, False),
        ("Basic.Reject", 3, False),
        ("Basic.Ack", 5, True),
    ]
