"""What a transport keeps while its broker is away: the truth, at once, and it goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import PATIENCE, Broker, bodies, message, receive_all, receive_one
from pairmq.testing.conformance._capabilities import capability, must_fail
from pairmq.testing.conformance._suite import Suite

_OUTAGE = 5.0
"""Seconds that a broker stays away from a call that should not wait for it; what fails at once ends the wait."""


async def _a_broker_that_forgets_takes_work_again(broker: Broker) -> None:
    queue = await broker.queue()
    sender = broker.sender(queue)
    await sender.send(message("before"))
    await broker.crash()
    await broker.restore()
    await broker.connect().admin.create(queue)
    await _until_it_works(lambda: sender.send(message("after")))
    receiver = broker.connect().receiver(Source(queue))
    assert "after" in bodies(await receive_all(receiver, 1) + await receiver.receive(10, 0.5))


class Faults(Suite):
    """A broker that stops, crashes, freezes and comes back (SPEC 3.6)."""

    async def test_a_stopped_broker_is_unavailable_and_nothing_was_sent(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            # The first one may find out in mid-send; then the connection is known to be down.
            await must_fail(lambda: sender.send(message("first")), FailureKind.UNAVAILABLE)
            error = await must_fail(lambda: sender.send(message("second")), FailureKind.UNAVAILABLE)
        assert not error.maybe_applied, "no byte of it can have been written"

    async def test_a_broker_that_was_never_there_is_unavailable(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.stop()
        sender = broker.connect().sender(queue)
        async with asyncio.timeout(PATIENCE):
            error = await must_fail(lambda: sender.send(message("lost")), FailureKind.UNAVAILABLE)
        assert not error.maybe_applied

    async def test_a_failed_send_is_not_tried_again_behind_the_callers_back(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            first = await must_fail(lambda: sender.send(message("failed")), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.connect().admin.create(queue)
        await _until_it_works(lambda: sender.send(message("after")))
        found = await _up_to(broker, "after", Source(queue))
        assert first.maybe_applied or "failed" not in found

    async def test_a_failed_send_does_not_outlast_the_outage(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            await must_fail(lambda: sender.send(message("first")), FailureKind.UNAVAILABLE)
        sending = asyncio.ensure_future(sender.send(message("second")))
        await asyncio.wait((sending,), timeout=_OUTAGE)
        answered = sending.done()
        await broker.restore()
        async with asyncio.timeout(PATIENCE):
            error = await _failure(lambda: sending)
        assert answered or error is not None, "it was tried again until the broker was back: switch retries off"
        assert error is not None and error.kind is FailureKind.UNAVAILABLE, f"{error!r}"

    async def test_a_stopped_broker_fails_every_message_of_a_batch(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            first = await sender.send_batch([message(str(number)) for number in range(3)])
            second = await sender.send_batch([message(str(number)) for number in range(3)])
        assert [error and error.kind for error in (*first, *second)] == [FailureKind.UNAVAILABLE] * 6
        assert not any(error and error.maybe_applied for error in second), "no byte of it can have been written"

    async def test_a_sender_works_again_when_its_broker_is_back(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            await must_fail(lambda: sender.send(message("lost")), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.connect().admin.create(queue)
        await _until_it_works(lambda: sender.send(message("after")))
        assert list(await sender.send_batch([message("batch")])) == [None]

    async def test_a_sender_that_was_idle_meanwhile_works_again(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.stop()
        await broker.restore()
        await broker.connect().admin.create(queue)
        await _until_it_works(lambda: sender.send(message("after")))

    async def test_a_long_poll_ends_when_its_broker_stops_and_the_receiver_works_again(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            await must_fail(lambda: polling, FailureKind.UNAVAILABLE)
            await must_fail(lambda: receiver.receive(1, 0.2), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.connect().admin.create(queue)
        await broker.put(queue, "after")
        found: list[object] = []

        async def receive() -> None:
            found.extend(await receiver.receive(1, PATIENCE))

        await _until_it_works(receive)
        assert len(found) == 1

    async def test_settling_at_a_stopped_broker_fails(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, *"abc")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 3)
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            for settle in (receiver.complete, receiver.abandon):
                _unreachable(await _failure(lambda settle=settle: settle(deliveries[0])))  # type: ignore[misc]
            for error in await receiver.complete_batch(deliveries[1:]):
                _unreachable(error)

    async def test_administration_of_a_stopped_broker_fails_and_guesses_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        admin = broker.admin
        await broker.stop()
        for call in (
            admin.check,
            lambda: admin.exists(queue),
            lambda: admin.create(queue),
            lambda: admin.properties(queue),
            lambda: admin.counts(Source(queue)),
            lambda: admin.purge(Source(queue)),
            lambda: admin.delete(queue),
        ):
            async with asyncio.timeout(PATIENCE):
                await must_fail(call, FailureKind.UNAVAILABLE)
        await broker.restore()
        await _until_it_works(admin.check)

    async def test_a_send_waits_out_a_short_silence_and_arrives_once(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("waits")))
        await asyncio.sleep(0.5)
        assert not sending.done(), "nobody can have confirmed it"
        await broker.restore()
        async with asyncio.timeout(PATIENCE):
            await sending
        await sender.send(message("after"))
        assert await _up_to(broker, "after", Source(queue)) == ["before", "waits", "after"]

    async def test_a_send_whose_broker_dies_under_it_tells_no_lie(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("before"))
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("in doubt")))
        await asyncio.sleep(0.3)
        await broker.stop()
        async with asyncio.timeout(PATIENCE):
            error = await must_fail(lambda: sending, FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.connect().admin.create(queue)
        await _until_it_works(lambda: sender.send(message("after")))
        found = await _up_to(broker, "after", Source(queue))
        assert error.maybe_applied or "in doubt" not in found

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_what_was_accepted_outlives_a_crash(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "one")
        assert list(await broker.sender(queue).send_batch([message("two"), message("three")])) == [None, None]
        await broker.crash()
        await broker.restore()
        receiver = broker.connect().receiver(Source(queue))
        assert bodies(await receive_all(receiver, 3)) == ["one", "two", "three"]

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_what_was_received_and_not_completed_comes_again(self, broker: Broker) -> None:
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "held")
        receiver = broker.receiver(queue)
        await receive_one(receiver)
        await broker.crash()
        await broker.restore()
        again = await receive_one(
            broker.connect().receiver(Source(queue)), wait=broker.harness.lock_duration + PATIENCE
        )
        assert again.message.body == b"held"

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_a_receiver_closed_in_an_outage_leaves_no_lock_to_the_next_one(self, broker: Broker) -> None:
        """A syphon begins anew after a lost connection: its drain must not wait for its own locks (SPEC 7.6)."""
        queue = await broker.queue()
        await broker.put(queue, *"abc")
        receiver = broker.receiver(queue)
        await receive_all(receiver, 3)
        await broker.stop()
        await receiver.close()
        await broker.restore()
        await _until_it_works(lambda: broker.admin.counts(Source(queue)))
        again: list[Delivery] = []

        async def receive() -> None:
            again.extend(await receive_all(broker.receiver(queue), 3 - len(again)))

        async with asyncio.timeout(PATIENCE):
            while len(again) < 3:
                await _until_it_works(receive)
        assert sorted(bodies(again)) == list("abc")


async def _until_it_works(call: Callable[[], Awaitable[object]]) -> None:
    """Call again while the broker seems to be away: a connection that was lost may be found out by one call."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            await call()
        except TransportError as error:
            if error.kind is not FailureKind.UNAVAILABLE or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def _failure(call: Callable[[], Awaitable[object]]) -> TransportError | None:
    try:
        await call()
    except TransportError as error:
        return error
    return None


def _unreachable(error: TransportError | None) -> None:
    assert error is not None, "nobody can have confirmed it"
    # A lock may be bound to the connection that is gone.
    assert error.kind is FailureKind.UNAVAILABLE or error.reason is FailureReason.LOCK_LOST, f"{error!r}"


async def _up_to(broker: Broker, last: str, source: Source) -> list[str]:
    """What the source gives up to one body, and what comes a moment after it."""
    receiver = broker.connect().receiver(source)
    found: list[str] = []
    while last not in found:
        found += bodies([await receive_one(receiver)])
    return found + bodies(await receiver.receive(100, 0.3))
