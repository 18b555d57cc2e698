"""Promises of a transport while its broker is unavailable, and when a call is cancelled: correct outcomes, recovery."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import (
    Broker,
    Suite,
    bodies,
    capability,
    cut_off,
    limits,
    message,
    must_fail,
    of_size,
    receive_all,
    receive_one,
    refusal,
    refused,
    testable_limit,
    up_to,
)
from pairmq.transport import Receiver, Sender, is_nothing_sent

_SENDERS = 16
"""That send while a broker is stopped: what some of them have sent is stored by then, and not yet confirmed."""


async def _a_broker_that_forgets_takes_work_again(broker: Broker) -> None:
    queue, sender = await broker.connected()
    await broker.crash()
    await _recovered(broker, queue, sender)
    receiver = broker.connect().receiver(Source(queue))
    assert "after" in bodies(await receive_all(receiver, 1) + await receiver.receive(10, 0.5))


class Faults(Suite):
    """A broker that stops, crashes, freezes and recovers (SPEC 3.6)."""

    async def test_a_stopped_broker_is_unavailable_and_nothing_was_sent(self, broker: Broker) -> None:
        _, sender = await broker.connected()
        await broker.stop()
        # The first one may find out in mid-send; then the connection is known to be down.
        await must_fail(lambda: sender.send(message("first")), FailureKind.UNAVAILABLE)
        error = await must_fail(lambda: sender.send(message("second")), FailureKind.UNAVAILABLE)
        assert not error.maybe_applied, "no byte of it can have been written"

    async def test_a_broker_that_was_never_there_is_unavailable(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.stop()
        sender = broker.connect().sender(queue)
        error = await must_fail(lambda: sender.send(message("lost")), FailureKind.UNAVAILABLE)
        assert not error.maybe_applied

    async def test_a_failed_send_is_not_tried_again_behind_the_callers_back(self, broker: Broker) -> None:
        """No hidden retries: a failure is raised at once."""
        queue, sender = await broker.connected()
        await broker.stop()
        first = await must_fail(lambda: sender.send(message("failed")), FailureKind.UNAVAILABLE)
        await _recovered(broker, queue, sender)
        found = await up_to(broker, queue, "after")
        assert first.maybe_applied or "failed" not in found

    async def test_a_failed_send_does_not_outlast_the_outage(self, broker: Broker) -> None:
        """No hidden retries: a failure is raised at once."""
        _, sender = await broker.connected()
        await broker.stop()
        await must_fail(lambda: sender.send(message("first")), FailureKind.UNAVAILABLE)
        sending = asyncio.ensure_future(sender.send(message("second")))
        await asyncio.wait((sending,), timeout=limits().outage)
        answered = sending.done()
        await broker.restore()
        async with asyncio.timeout(limits().patience):
            error = await _failure(lambda: sending)
        assert answered or error is not None, "it was tried again until the broker was back: switch retries off"
        assert error is not None and error.kind is FailureKind.UNAVAILABLE, f"{error!r}"

    async def test_sends_under_way_when_a_broker_stops_report_a_correct_outcome(self, broker: Broker) -> None:
        """``maybe_applied`` is True unless it is certain that the broker has not stored the message."""
        queue, sender = await broker.connected()
        certain: set[str] = set()
        confirmed, enough = 0, asyncio.Event()

        async def send_until_it_fails(name: int) -> None:
            nonlocal confirmed
            for number in itertools.count():
                body = f"{name}/{number}"
                try:
                    await sender.send(message(body))
                except TransportError as error:
                    if not error.maybe_applied:
                        certain.add(body)
                    return
                confirmed += 1
                if confirmed >= 2 * _SENDERS:
                    enough.set()

        sends = asyncio.gather(*map(send_until_it_fails, range(_SENDERS)))
        async with asyncio.timeout(limits().patience):
            await asyncio.wait((sends, asyncio.ensure_future(enough.wait())), return_when=asyncio.FIRST_COMPLETED)
            await broker.stop()
            await sends
        await _recovered(broker, queue, sender)
        found = await up_to(broker, queue, "after")
        assert not certain & set(found), "said to be certainly not sent, and there all the same"

    async def test_a_confirm_that_is_lost_leaves_a_doubt(self, broker: Broker) -> None:
        """``maybe_applied`` is True unless it is certain that the broker has not stored the message.

        It is certain with a broker that is a library in this process, and can only be stopped.
        """
        queue, sender = await broker.connected()
        await broker.lose_confirms()
        async with asyncio.timeout(limits().patience):
            single = await must_fail(lambda: sender.send(message("single")), FailureKind.UNAVAILABLE)
            batch = await sender.send_batch([message("first"), message("second")])
        assert None not in batch, "the broker has confirmed nothing"
        await broker.restore()
        await _until_it_works(lambda: sender.send(message("after")))
        found = await up_to(broker, queue, "after")
        outcomes = zip(("single", "first", "second"), (single, *batch), strict=True)
        certain = {body for body, error in outcomes if error and not error.maybe_applied}
        assert not certain & set(found), "said to be certainly not sent, and there all the same"
        assert len(set(found)) == len(found), "sent again behind the caller's back, which knows of one copy at most"
        if broker.harness.in_process:
            assert certain == {"single", "first", "second"}, "said to be in doubt, which is impossible in one process"

    async def test_a_broker_that_stores_nothing_is_unavailable(self, broker: Broker) -> None:
        """Another broker can take what this one has no room for: *unavailable*, not *refused* (SPEC 3.6)."""
        queue, sender = await broker.connected()
        await broker.refuse_writes()
        for _ in range(2):  # it fails, or is not answered
            await cut_off(sender.send(message("lost")), limit=1.0, why="the broker stores nothing")
        await broker.restore()
        await _until_it_works(lambda: sender.send(message("after")))
        assert "after" in await up_to(broker, queue, "after")

    async def test_what_a_broker_can_never_take_is_refused_while_it_is_stopped(self, broker: Broker) -> None:
        """What `check_message` refuses, a send refuses in every state of the broker (SPEC 3.8)."""
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        later = datetime.now(UTC) + timedelta(hours=1)
        offered = [message("lives", time_to_live=60.0), message("later", scheduled_enqueue_at=later)]
        if (most := testable_limit(broker)) is not None:
            offered.append(of_size(broker, most + 1))
        never = [(each, error) for each in offered if (error := refusal(broker, queue, each))]
        await broker.stop()
        for offer, why in never:
            async with asyncio.timeout(limits().patience):
                failure = await must_fail(lambda offer=offer: sender.send(offer), why.kind, why.reason)  # type: ignore[misc]
                (error,) = await sender.send_batch([offer])
            assert not failure.maybe_applied
            assert error is not None and (error.kind, error.reason) == (why.kind, why.reason), f"{error!r}"

    async def test_a_stopped_broker_fails_every_message_of_a_batch(self, broker: Broker) -> None:
        _, sender = await broker.connected()
        await broker.stop()
        async with asyncio.timeout(limits().patience):
            first = await sender.send_batch([message(str(number)) for number in range(3)])
            second = await sender.send_batch([message(str(number)) for number in range(3)])
        assert [error and error.kind for error in (*first, *second)] == [FailureKind.UNAVAILABLE] * 6
        assert not any(error and error.maybe_applied for error in second), "no byte of it can have been written"

    async def test_a_sender_works_again_when_its_broker_is_back(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.stop()
        await must_fail(lambda: sender.send(message("lost")), FailureKind.UNAVAILABLE)
        await _recovered(broker, queue, sender)
        assert list(await sender.send_batch([message("batch")])) == [None]

    async def test_a_sender_that_was_idle_meanwhile_works_again(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.stop()
        await _recovered(broker, queue, sender)

    async def test_a_long_poll_ends_when_its_broker_stops_and_the_receiver_works_again(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        await broker.stop()
        await must_fail(lambda: polling, FailureKind.UNAVAILABLE)
        await must_fail(lambda: receiver.receive(1, 0.2), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.connect().admin.create(queue)
        await broker.put(queue, "after")
        found: list[object] = []

        async def receive() -> None:
            found.extend(await receiver.receive(1, limits().patience))

        await _until_it_works(receive)
        assert len(found) == 1

    async def test_settling_at_a_stopped_broker_fails(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 3)
        await broker.stop()
        async with asyncio.timeout(limits().patience):
            for settle in (receiver.complete, receiver.abandon):
                _unreachable(await _failure(lambda settle=settle: settle(deliveries[0])))  # type: ignore[misc]
            for error in await receiver.complete_batch(deliveries[1:]):
                _unreachable(error)

    @capability("dead_letter", disclaimed=refused(lambda broker: _dead_letter(broker)))
    async def test_dead_lettering_at_a_stopped_broker_fails(self, broker: Broker) -> None:
        receiver, delivery = await _held(broker)
        await broker.stop()
        async with asyncio.timeout(limits().patience):
            _unreachable(await _failure(lambda: receiver.dead_letter(delivery, "a reason", "a description")))

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
            await must_fail(call, FailureKind.UNAVAILABLE)
        await broker.restore()
        await _until_it_works(admin.check)

    async def test_a_send_waits_out_a_short_silence_and_arrives_once(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("waits")))
        await asyncio.sleep(0.5)
        assert not sending.done(), "no broker can have confirmed it"
        await broker.restore()
        async with asyncio.timeout(limits().patience):
            await sending
        await sender.send(message("after"))
        assert await up_to(broker, queue, "after") == ["before", "waits", "after"]

    async def test_a_send_whose_broker_dies_under_it_reports_a_correct_outcome(self, broker: Broker) -> None:
        """``maybe_applied`` is True unless it is certain that the broker has not stored the message."""
        queue, sender = await broker.connected()
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("in doubt")))
        await asyncio.sleep(0.3)
        await broker.stop()
        error = await must_fail(lambda: sending, FailureKind.UNAVAILABLE)
        await _recovered(broker, queue, sender)
        found = await up_to(broker, queue, "after")
        assert error.maybe_applied or "in doubt" not in found

    async def test_a_session_s_messages_are_confirmed_and_stored_from_the_first_on_when_the_broker_dies(
        self, broker: Broker
    ) -> None:
        """Whatever is lost of `Sender.send_in_order`, a later message counts as stored only with all before it."""
        queue, sender = await broker.connected()
        batch = [message(f"{number % 3}-{number}", session_id=str(number % 3)) for number in range(600)]
        sending = asyncio.ensure_future(sender.send_in_order(batch))
        await asyncio.sleep(0.01)
        await broker.stop()
        async with asyncio.timeout(limits().patience):
            outcomes = await sending
        await _recovered(broker, queue, sender)
        found = await up_to(broker, queue, "after")
        for session in "012":
            places = [place for place, each in enumerate(batch) if each.session_id == session]
            confirmed = [outcomes[place] is None for place in places]
            assert confirmed == sorted(confirmed, reverse=True), "one is confirmed behind one that failed"
            stored = [batch[place].body.decode() in found for place in places]
            assert stored == sorted(stored, reverse=True), "one is stored behind one that is not"

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_what_was_accepted_outlives_a_crash(self, broker: Broker) -> None:
        queue = await broker.queue_with("one")
        assert list(await broker.sender(queue).send_batch([message("two"), message("three")])) == [None, None]
        await broker.crash()
        await broker.restore()
        receiver = broker.connect().receiver(Source(queue))
        assert bodies(await receive_all(receiver, 3)) == ["one", "two", "three"]

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_what_was_received_and_not_completed_is_redelivered(self, broker: Broker) -> None:
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "held")
        receiver = broker.receiver(queue)
        await receive_one(receiver)
        await broker.crash()
        await broker.restore()
        again = await receive_one(
            broker.connect().receiver(Source(queue)), wait=broker.harness.lock_duration + limits().patience
        )
        assert again.message.body == b"held"

    @capability("durable", disclaimed=_a_broker_that_forgets_takes_work_again)
    async def test_a_receiver_closed_in_an_outage_leaves_no_lock_to_the_next_one(self, broker: Broker) -> None:
        """A syphon begins anew after a lost connection: its drain must not wait for its own locks (SPEC 7.6)."""
        queue = await broker.queue_with(*"abc")
        receiver = broker.receiver(queue)
        await receive_all(receiver, 3)
        await broker.stop()
        await receiver.close()
        await broker.restore()
        await _until_it_works(lambda: broker.admin.counts(Source(queue)))
        again: list[Delivery] = []

        async def receive() -> None:
            again.extend(await receive_all(broker.receiver(queue), 3 - len(again)))

        async with asyncio.timeout(limits().patience):
            while len(again) < 3:
                await _until_it_works(receive)
        assert sorted(bodies(again)) == list("abc")


async def _held(broker: Broker) -> tuple[Receiver, Delivery]:
    """Receive a message, which stays locked."""
    receiver = broker.receiver(await broker.queue_with("hello"))
    return receiver, await receive_one(receiver)


async def _dead_letter(broker: Broker) -> None:
    receiver, delivery = await _held(broker)
    await receiver.dead_letter(delivery, "a reason", "a description")


async def _renew(broker: Broker) -> object:
    receiver, delivery = await _held(broker)
    return await receiver.renew_lock(delivery)


async def _recovered(broker: Broker, queue: Entity, sender: Sender) -> None:
    """Bring the broker back, and its queue if it keeps none, and send *after*."""
    await broker.restore()
    await broker.connect().admin.create(queue)
    await _until_it_works(lambda: sender.send(message("after")))


async def _until_it_works(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat the call while the broker seems unavailable: it may take one call to detect a lost connection."""
    deadline = asyncio.get_running_loop().time() + limits().patience
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
    assert error is not None, "no broker can have confirmed it"
    # A lock may be bound to the connection that is gone.
    assert error.kind is FailureKind.UNAVAILABLE or error.reason is FailureReason.LOCK_LOST, f"{error!r}"


_MOMENTS = 40
"""Sends that are cut off, each a little later than the one before: the last when it is all but done."""


class Cancellation(Suite):
    """Time limits come from above as cancellation (`pairmq.transport`), against a broker that never answers."""

    async def test_a_send_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.freeze()
        await cut_off(sender.send(message("in doubt")))
        await broker.restore()
        await sender.send(message("after"))
        found = await up_to(broker, queue, "after")
        assert set(found) - {"in doubt"} == {"before", "after"}

    async def test_a_batch_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.freeze()
        await cut_off(_all_fail(sender.send_batch([message("in doubt") for _ in range(3)])))
        await cut_off(_all_fail(sender.send_in_order([message("in doubt") for _ in range(3)])))
        await broker.restore()
        assert list(await sender.send_batch([message("after")])) == [None]
        assert {"before", "after"} <= set(await up_to(broker, queue, "after"))

    async def test_connecting_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.connect().sender(queue)
        await broker.freeze()
        await cut_off(sender.send(message("in doubt")))
        await broker.restore()
        await sender.send(message("after"))
        assert "after" in await up_to(broker, queue, "after")

    async def test_making_ready_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        """`Sender.make_ready` and `Transport.make_ready` are hints, which a transport may ignore."""
        queue, transport = await broker.queue(), broker.connect()
        sender = transport.sender(queue)
        await broker.freeze()
        await cut_off(sender.make_ready(), why=None)
        await cut_off(transport.make_ready(sends=True, receives=True), why=None)
        await broker.restore()
        await sender.make_ready()
        await sender.send(message("after"))
        assert await up_to(broker, queue, "after") == ["after"]

    async def test_a_long_poll_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        assert await receiver.receive(1, 0) == []
        await broker.freeze()
        await cut_off(receiver.receive(1, 300.0))
        await broker.restore()
        await broker.put(queue, "after")
        assert bodies([await receive_one(receiver)]) == ["after"]

    async def test_connecting_to_receive_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.connect().receiver(Source(queue))
        await broker.freeze()
        await cut_off(receiver.receive(1, 300.0))
        await broker.restore()
        await broker.put(queue, "after")
        assert bodies([await receive_one(receiver)]) == ["after"]

    async def test_settling_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"ab")
        receiver = broker.receiver(queue)
        first, second = await receive_all(receiver, 2)
        await broker.freeze()
        await cut_off(receiver.complete(first))
        await cut_off(_all_fail(receiver.complete_batch([second])))
        await broker.restore()
        await broker.put(queue, "after")
        found = []
        while "after" not in found:
            found += bodies([await receive_one(receiver)])
        assert set(found) <= {"a", "b", "after"}

    async def test_abandoning_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue_with("a")
        receiver = broker.receiver(queue)
        delivery = await receive_one(receiver)
        await broker.freeze()
        await cut_off(receiver.abandon(delivery))

    @capability("dead_letter", disclaimed=refused(lambda broker: _dead_letter(broker)))
    async def test_dead_lettering_is_cut_off(self, broker: Broker) -> None:
        receiver, delivery = await _held(broker)
        await broker.freeze()
        await cut_off(receiver.dead_letter(delivery, "a reason", "a description"))

    @capability("lock_renewal", disclaimed=refused(lambda broker: _renew(broker)))
    async def test_renewing_is_cut_off(self, broker: Broker) -> None:
        receiver, delivery = await _held(broker)
        await broker.freeze()
        await cut_off(receiver.renew_lock(delivery), why=None)  # a lock may last as long as its connection

    async def test_administration_is_cut_off_and_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        admin = broker.admin
        await broker.freeze()
        await cut_off(admin.check())
        await cut_off(admin.exists(queue))
        await cut_off(admin.create(Entity("made-in-doubt")))
        await cut_off(admin.counts(Source(queue)))
        await cut_off(admin.properties(queue))
        await cut_off(admin.purge(Source(queue)))
        await cut_off(admin.delete(Entity("made-in-doubt")))
        await broker.restore()
        await admin.check()
        assert await admin.exists(queue)

    @capability("peek", disclaimed=refused(lambda broker: broker.admin.peek(Source(Entity("orders")), 1)))
    async def test_peeking_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue_with("a")
        await broker.freeze()
        await cut_off(broker.admin.peek(Source(queue), 1))

    @capability(
        "sessions", disclaimed=refused(lambda broker: broker.transport.accept_session(Source(Entity("orders")), wait=0))
    )
    async def test_a_wait_for_a_session_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.freeze()
        await cut_off(broker.transport.accept_session(Source(queue), wait=300.0))
        await broker.restore()
        await broker.put(queue, "a1", session_id="a")
        receiver = await broker.transport.accept_session(Source(queue), wait=limits().patience)
        assert receiver is not None and receiver.session_id == "a"

    async def test_a_cancellation_is_not_swallowed(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(limits().patience):
                await polling

    async def test_a_cancelled_send_takes_no_other_with_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        sends = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        for cancelled in sends[::5]:
            cancelled.cancel()
        ends = await asyncio.gather(*sends, return_exceptions=True)
        sound = [str(number) for number in range(20) if number % 5]
        assert [end for number, end in enumerate(ends) if number % 5] == [None] * 16
        found = await up_to(broker, queue, None, least=16)
        assert set(sound) <= set(found)

    async def test_what_says_that_nothing_was_sent_never_arrives(self, broker: Broker) -> None:
        queue = await broker.queue()
        used, fresh = broker.sender(queue), broker.connect().sender(queue)
        await used.send(message("before"))
        await broker.freeze()
        timeouts = {
            "connected": await cut_off(used.send(message("connected"))),
            "connecting": await cut_off(fresh.send(message("connecting"))),
        }
        await broker.restore()
        await broker.put(queue, "after")
        found = await up_to(broker, queue, "after")
        lies = [body for body, timeout in timeouts.items() if timeout and is_nothing_sent(timeout) and body in found]
        assert not lies, "marked as not sent, and there all the same"

    async def test_sends_cut_off_at_any_moment_report_a_correct_outcome(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        began = asyncio.get_running_loop().time()
        await sender.send(message("to see how long it takes"))
        took = min(asyncio.get_running_loop().time() - began, 0.25)
        marked = set()
        for number in range(_MOMENTS):
            sending = asyncio.ensure_future(sender.send(message(str(number))))
            await asyncio.sleep(took * number / _MOMENTS)
            sending.cancel()
            try:
                await sending
            except asyncio.CancelledError as cancellation:
                if is_nothing_sent(cancellation):
                    marked.add(str(number))
        await sender.send(message("after"))
        found = await up_to(broker, queue, "after")
        assert not marked & set(found), "marked as not sent, and there all the same"

    async def test_a_send_cut_off_while_connecting_leaves_no_doubt(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.connect().sender(queue)
        await broker.freeze()
        timeout = await cut_off(sender.send(message("connecting")))
        await broker.restore()
        await broker.put(queue, "after")
        if "connecting" not in await up_to(broker, queue, "after"):
            # It was not written: a transport that knows this has to report it, or each outage ends in duplicates.
            assert timeout is None or is_nothing_sent(timeout), (
                "nothing was sent, but the error does not have nothing_sent"
            )


async def _all_fail(batch: Awaitable[Sequence[TransportError | None]]) -> None:
    """Raise the failures of a batch, as a single call does."""
    for error in await batch:
        if error:
            raise error
