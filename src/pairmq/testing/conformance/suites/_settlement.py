"""What settling keeps: done means done, and a lock that ended settles nothing."""

from __future__ import annotations

import asyncio

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import (
    Broker,
    Suite,
    bodies,
    capability,
    limit,
    message,
    must_fail,
    of_size,
    receive_all,
    receive_one,
)
from pairmq.testing.conformance._limits import limits
from pairmq.testing.conformance.suites._timing import LockClock
from pairmq.transport import Receiver

_LOST = (FailureKind.REFUSED, FailureReason.LOCK_LOST)


async def _dead_lettering_is_refused(broker: Broker) -> None:
    queue = await broker.queue()
    receiver, delivery = await _one(broker, queue)
    await must_fail(
        lambda: receiver.dead_letter(delivery, "reason", "description"),
        FailureKind.REFUSED,
        FailureReason.NOT_SUPPORTED,
    )
    await receiver.complete(delivery)  # what was refused left it locked


async def _renewing_is_refused(broker: Broker) -> None:
    queue = await broker.queue()
    receiver, delivery = await _one(broker, queue)
    await must_fail(lambda: receiver.renew_lock(delivery), FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)


class Settlement(Suite):
    """`Receiver.complete`, `abandon`, `dead_letter`, `renew_lock` and their batches."""

    async def test_a_completed_message_is_gone(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await receiver.close()  # which would release it
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    async def test_settling_twice_is_a_lost_lock(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await must_fail(lambda: receiver.complete(delivery), *_LOST)

    async def test_an_abandoned_message_is_redelivered_and_counts(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        again = await receive_one(receiver)
        assert again.message == delivery.message
        assert again.delivery_count == 2, "one delivery has to be counted, and no more"

    async def test_an_abandoned_message_is_another_receivers_too(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        again = await receive_one(broker.connect().receiver(Source(queue)))
        assert again.message == delivery.message

    async def test_a_batch_completes_all_of_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.sender(queue).send_batch([message(str(number)) for number in range(30)])
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 30)
        assert list(await receiver.complete_batch(deliveries)) == [None] * 30
        await receiver.close()
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    async def test_a_batch_of_none_completes(self, broker: Broker) -> None:
        queue = await broker.queue()
        assert list(await broker.receiver(queue).complete_batch([])) == []

    async def test_a_batch_says_which_of_it_was_settled_before(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, *"abc")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 3)
        await receiver.complete(deliveries[1])
        outcomes = await receiver.complete_batch(deliveries)
        assert [error and error.reason for error in outcomes] == [None, FailureReason.LOCK_LOST, None]

    async def test_another_receivers_delivery_is_not_settled(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "a")
        other = broker.receiver(queue)
        foreign = await receive_one(other)
        await must_fail(lambda: broker.receiver(queue).complete(foreign), *_LOST)
        await must_fail(lambda: broker.receiver(queue).abandon(foreign), *_LOST)
        await other.complete(foreign)  # it is still the other one's

    async def test_a_batch_says_which_of_it_is_another_receivers(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, *"ab")
        receiver, other = broker.receiver(queue), broker.receiver(queue)
        mine, foreign = await receive_one(receiver), await receive_one(other)
        outcomes = await receiver.complete_batch([foreign, mine])
        assert [error and error.reason for error in outcomes] == [FailureReason.LOCK_LOST, None]
        await other.complete(foreign)  # it is still the other one's

    async def test_many_may_settle_at_once(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, *"abcdefgh")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 8)
        await asyncio.gather(*map(receiver.complete, deliveries[:4]), *map(receiver.abandon, deliveries[4:]))
        assert sorted(bodies(await receive_all(receiver, 4))) == list("efgh")

    async def test_settling_does_not_wait_for_a_long_poll(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(limits().patience):
            await receiver.complete(delivery)
        await broker.put(queue, "next")
        async with asyncio.timeout(limits().patience):
            assert bodies(await polling) == ["next"]

    async def test_a_lock_that_ended_settles_nothing(self, broker: Broker) -> None:
        queue = await broker.queue(short_locks=True)
        receiver, delivery = await _one(broker, queue)
        # It has certainly expired once another receiver has the message.
        other = broker.connect().receiver(Source(queue))
        again = await receive_one(other, wait=broker.harness.lock_duration + limits().patience)
        await must_fail(lambda: receiver.complete(delivery), *_LOST)
        await must_fail(lambda: receiver.abandon(delivery), *_LOST)
        assert again.message == delivery.message

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_a_renewed_lock_lasts_longer(self, broker: Broker) -> None:
        """`renew_lock` makes the lock last its whole duration from now: no other receiver gets the message."""
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "hello")
        receiver, other = broker.receiver(queue), broker.connect()
        while not await _held_for_longer(broker, receiver, other.receiver(Source(queue))):
            pass  # this machine stalled for as long as a lock: once more

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_the_delivery_that_was_renewed_settles_just_as_well(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.renew_lock(delivery)
        await receiver.complete(delivery)

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_the_lock_of_a_settled_message_is_lost(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await must_fail(lambda: receiver.renew_lock(delivery), *_LOST)

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_keeps_message_reason_and_description(self, broker: Broker) -> None:
        queue = await broker.queue()
        (sent,) = await broker.put(queue, "poison", subject="a subject", application_properties={"key": 1})
        receiver = broker.receiver(queue)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "A description in a sentence, with ä.")
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message == sent
        told = (dead.dead_letter_reason, dead.dead_letter_description)
        assert told == ("a reason", "A description in a sentence, with ä.")

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_is_gone_from_its_queue(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.dead_letter(delivery, "a reason", "a description")
        await receiver.close()
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_description_of_any_length_is_taken(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        text = "ä long description. " * 10_000
        await receiver.dead_letter(delivery, "a reason", text)
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        described = dead.dead_letter_description or ""
        assert described and text.startswith(described.rstrip("…. ")), "it may be cut, and nothing else"

    @limit("max_message_bytes")
    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_the_largest_message_can_be_dead_lettered(self, broker: Broker) -> None:
        """`dead_letter` moves any delivery; it is the description that is cut to what the broker takes."""
        queue = await broker.queue()
        sender, receiver = broker.sender(queue), broker.receiver(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        await receiver.complete(await receive_one(receiver))
        largest = of_size(broker)
        await sender.send(largest)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "a long description. " * 200)
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message.body == largest.body
        assert dead.dead_letter_reason == "a reason"

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_can_be_completed_there(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.dead_letter(delivery, "a reason", "a description")
        dead = broker.receiver(Source(queue, dead_letter=True))
        await dead.complete(await receive_one(dead))
        await dead.close()
        assert await broker.connect().receiver(Source(queue, dead_letter=True)).receive(1, 0.3) == []

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_message_that_was_delivered_too_often_is_dead_lettered(self, broker: Broker) -> None:
        queue = await broker.queue(max_delivery_count=2)
        if (await broker.admin.properties(queue)).max_delivery_count != 2:
            return  # the broker has no such limit, as reported
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        await receiver.abandon(await receive_one(receiver))
        assert await receiver.receive(1, 0.5) == [], "it came a third time"
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message == delivery.message

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_lock_that_ended_dead_letters_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        await must_fail(lambda: receiver.dead_letter(delivery, "a reason", "a description"), *_LOST)


async def _held_for_longer(broker: Broker, receiver: Receiver, other: Receiver) -> bool:
    """Hold a message for one and a half times as long as an unrenewed lock, while another one waits for it."""
    clock = LockClock(broker.harness.lock_duration)
    clock.ask()
    delivery = await receive_one(receiver)
    clock.begin()
    waiting = asyncio.ensure_future(other.receive(1, 300.0))
    try:
        for _ in range(5):
            await asyncio.wait((waiting,), timeout=broker.harness.lock_duration * 0.3)
            if waiting.done():
                given = await waiting
                assert not given or clock.is_over, "another receiver got the message whose lock is renewed"
                return False
            clock.ask()
            renewed = await receiver.renew_lock(delivery)
            clock.begin()
            assert renewed.message == delivery.message
            if delivery.locked_until is not None:
                assert renewed.locked_until is not None and renewed.locked_until > delivery.locked_until
            delivery = renewed
        await receiver.complete(delivery)
    except TransportError as error:
        if not clock.excuses(error):
            raise
        return False
    else:
        return True
    finally:
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=limits().patience)
        await other.close()  # which releases its messages


async def _one(broker: Broker, queue: Entity) -> tuple[Receiver, Delivery]:
    """A receiver that holds one message."""
    await broker.put(queue, "hello")
    receiver = broker.receiver(queue)
    return receiver, await receive_one(receiver)
