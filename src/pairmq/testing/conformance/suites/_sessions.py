"""What sessions keep: one reader at a time, the session's order, its lock and its state."""

from __future__ import annotations

import asyncio

from pairmq.model import Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import PATIENCE, Broker, bodies, message, receive_all, receive_one
from pairmq.testing.conformance._capabilities import capability, must_fail, refused
from pairmq.testing.conformance._suite import Suite
from pairmq.testing.conformance.suites._timing import LockClock
from pairmq.transport import QueueProperties, SessionReceiver


async def _accept(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), wait=0.2)


async def _accept_by_name(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), "a", wait=0.2)


async def _make(broker: Broker) -> object:
    return await broker.admin.create(Entity("by-session"), QueueProperties(requires_session=True))


class Sessions(Suite):
    """`Transport.accept_session` and `SessionReceiver`."""

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_session_is_read_alone_and_in_order(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body, session in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")):
            await broker.put(queue, body, session_id=session)
        receiver = await _session(broker, queue, "a")
        assert receiver.session_id == "a"
        assert bodies(await receive_all(receiver, 3)) == ["a1", "a2", "a3"]
        assert await receiver.receive(1, 0.3) == []

    @capability("sessions", disclaimed=refused(_accept))
    async def test_the_next_free_session_is_one_that_has_messages(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await broker.put(queue, "b1", session_id="b")
        first, second = await _session(broker, queue), await _session(broker, queue)
        assert {first.session_id, second.session_id} == {"a", "b"}

    @capability("sessions", disclaimed=refused(_accept))
    async def test_none_is_given_when_none_is_free_in_time(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        assert await broker.transport.accept_session(Source(queue), wait=0.3) is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_locked_session_is_nobody_elses(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await _session(broker, queue, "a")
        assert await broker.connect().accept_session(Source(queue), "a", wait=0.3) is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_closed_session_is_the_next_ones_with_what_was_not_settled(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body in ("a1", "a2"):
            await broker.put(queue, body, session_id="a")
        first = await _session(broker, queue, "a")
        deliveries = await receive_all(first, 2)
        await first.complete(deliveries[0])
        await first.close()
        assert bodies(await receive_all(await _session(broker, queue, "a"), 1)) == ["a2"]

    @capability("sessions", disclaimed=refused(_accept))
    async def test_a_waiting_reader_gets_the_session_that_comes(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        waiting = asyncio.ensure_future(broker.transport.accept_session(Source(queue), wait=PATIENCE))
        await asyncio.sleep(0.3)
        await broker.put(queue, "a1", session_id="a")
        receiver = await waiting
        assert receiver is not None and receiver.session_id == "a"

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_the_state_outlives_its_reader(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        first = await _session(broker, queue, "a")
        assert await first.get_state() is None
        await first.set_state(b"\x00 half way \xff")
        await first.close()
        second = await _session(broker, queue, "a")
        assert await second.get_state() == b"\x00 half way \xff"
        await second.set_state(None)
        assert await second.get_state() is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_renewed_session_lock_lasts_longer(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        clock = LockClock(broker.harness.lock_duration)
        while not await _held_for_longer(broker, queue, clock):
            pass  # this machine stood still for as long as a lock: once more

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_lost_session_lock_is_told(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        receiver = await _session(broker, queue, "a")
        delivery = await receive_one(receiver)
        wait = broker.harness.lock_duration + PATIENCE
        other = await broker.connect().accept_session(Source(queue), "a", wait=wait)
        assert other is not None, "the lock did not end"
        lost = (FailureKind.REFUSED, FailureReason.LOCK_LOST)
        await must_fail(lambda: receiver.complete(delivery), *lost)
        await must_fail(receiver.renew_session_lock, *lost)
        assert (await receive_one(other)).message == delivery.message

    @capability("sessions", disclaimed=refused(_accept))
    async def test_a_queue_without_sessions_has_none_to_accept(self, broker: Broker) -> None:
        await must_fail(lambda: _accept(broker), FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)

    @capability("sessions", disclaimed=refused(_make))
    async def test_a_message_without_a_session_is_refused_where_one_is_required(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        sender = broker.sender(queue)
        await must_fail(lambda: sender.send(message("lost")), FailureKind.REFUSED)


async def _held_for_longer(broker: Broker, queue: Entity, clock: LockClock) -> bool:
    """Hold a session for one and a half times as long as an unrenewed lock; False after a standstill."""
    clock.ask()
    receiver = await _session(broker, queue, "a")
    clock.begin()
    try:
        delivery = await receive_one(receiver)
        for _ in range(5):
            await asyncio.sleep(broker.harness.lock_duration * 0.3)
            before = receiver.locked_until
            clock.ask()
            assert await receiver.renew_session_lock() > before
            clock.begin()
        await receiver.complete(delivery)
    except TransportError as error:
        if not clock.excuses(error):
            raise
        return False
    return True


async def _session(broker: Broker, queue: Entity, name: str | None = None) -> SessionReceiver:
    receiver = await broker.transport.accept_session(Source(queue), name, wait=PATIENCE)
    assert receiver is not None, "no session was free"
    return receiver
