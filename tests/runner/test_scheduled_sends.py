"""What the events tell of messages that are sent for later."""

from __future__ import annotations

from datetime import UTC, datetime

from pairmq import Message
from pairmq.model.events import SendCompleted
from pairmq.testing import in_virtual_time

DUE = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@in_virtual_time
async def test_a_send_reports_when_its_message_is_scheduled(world):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1", scheduled_enqueue_at=DUE))
        assert [event.scheduled_enqueue_at for event in w.of(SendCompleted)] == [DUE.timestamp()]


@in_virtual_time
async def test_a_send_for_now_reports_no_schedule(world):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1"))
        assert [event.scheduled_enqueue_at for event in w.of(SendCompleted)] == [None]
