"""Receivers with one defect each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import limits
from pairmq.testing.defects._defect import DefectiveReceiver, DefectiveTransport, planted
from pairmq.transport import Receiver


@planted(
    "Receiver.complete: a completed message is removed from the broker",
    "Settlement.test_a_completed_message_is_gone",
    "Settlement.test_settling_twice_is_a_lost_lock",
    "Settlement.test_the_lock_of_a_settled_message_is_lost",
    "Settlement.test_a_dead_letter_can_be_completed_there",
    "Topics.test_what_one_subscription_completes_the_other_still_has",
    "Topics.test_counts_are_each_subscriptions_own",
    "Faults.test_settling_at_a_stopped_broker_fails",
    "Lifecycle.test_a_closed_receiver_receives_nothing",
    "Cancellation.test_settling_is_cut_off_and_the_receiver_goes_on",
)
class CompletesNothing(DefectiveReceiver):
    async def complete(self, delivery: Delivery) -> None:
        pass


@planted(
    "Receiver.receive: whatever a sender has stored can be decoded",
    "Send.test_every_application_property_comes_back_as_it_was",
    "Failover.test_a_secondary_keeps_messages_and_gives_them_back_as_they_were",
)
class TakesNothingBesideTextsForMalformed(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        given = await super().receive(max_messages, wait)
        kinds = [{type(value) for value in each.message.application_properties.values()} for each in given]
        bad = [delivery for delivery, kind in zip(given, kinds, strict=True) if kind == {str, type(None)}]
        for delivery in bad:
            await super().complete(delivery)
        return [delivery for delivery in given if delivery not in bad]


@planted(
    "Receiver.complete_batch: each entry is the outcome of that delivery",
    "Settlement.test_a_batch_says_which_of_it_was_settled_before",
    "Settlement.test_a_batch_says_which_of_it_is_another_receivers",
)
class CompletesAnything(DefectiveReceiver):
    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        await super().complete_batch(deliveries)
        return [None] * len(deliveries)


_GIVEN: list[tuple[Delivery, DefectiveReceiver]] = []


@planted(
    "Receiver: a delivery is settled through the receiver that returned it alone",
    "Settlement.test_another_receivers_delivery_is_not_settled",
)
class SettlesWhatOthersHold(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        given = await super().receive(max_messages, wait)
        _GIVEN.extend((delivery, self) for delivery in given)
        return given

    async def complete(self, delivery: Delivery) -> None:
        holder = next(receiver for given, receiver in _GIVEN if given is delivery)
        await holder.inner.complete(delivery)


@planted(
    "Receiver.close: unsettled messages are released for redelivery",
    "Receive.test_a_closed_receiver_releases_what_it_held",
)
class KeepsLocksWhenClosed(DefectiveReceiver):
    async def close(self) -> None:
        pass


@planted(
    "Receiver.abandon: a redelivery increments the delivery count",
    "Settlement.test_an_abandoned_message_is_redelivered_and_counts",
    "Receive.test_a_lock_that_ends_gives_the_message_to_another",
)
class CountsNoDeliveries(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return [replace(delivery, delivery_count=1) for delivery in await super().receive(max_messages, wait)]


@planted(
    "Receiver.abandon: the message is released for immediate redelivery",
    "Settlement.test_an_abandoned_message_is_redelivered_and_counts",
    "Settlement.test_an_abandoned_message_is_another_receivers_too",
    "Settlement.test_many_may_settle_at_once",
    "Settlement.test_a_lock_that_ended_dead_letters_nothing",
    "Cancellation.test_abandoning_is_cut_off",
)
class AbandonsNothing(DefectiveReceiver):
    async def abandon(self, delivery: Delivery) -> None:
        pass


@planted(
    "Receiver.dead_letter: reason and description are kept",
    "Settlement.test_a_dead_letter_keeps_message_reason_and_description",
    needs=("dead_letter",),
)
class DeadLettersWithoutReason(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await super().dead_letter(delivery, "", "")


@planted(
    "Receiver.dead_letter: the message is in the dead-letter queue",
    "Settlement.test_a_dead_letter_keeps_message_reason_and_description",
    "Settlement.test_a_description_of_any_length_is_taken",
    "Settlement.test_a_dead_letter_can_be_completed_there",
    "Admin.test_counts_report_what_was_dead_lettered",
    "Admin.test_purging_a_queue_or_its_dead_letter_queue_leaves_the_other",
    "Topics.test_a_subscription_has_a_dead_letter_queue_of_its_own",
    needs=("dead_letter",),
)
class DeadLettersIntoNothing(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self.complete(delivery)


@planted(
    "Receiver.renew_lock: the lock is extended to its full duration",
    "Settlement.test_a_renewed_lock_lasts_longer",
    needs=("lock_renewal",),
)
class RenewsNothing(DefectiveReceiver):
    async def renew_lock(self, delivery: Delivery) -> Delivery:
        assert delivery.locked_until is not None
        return replace(delivery, locked_until=delivery.locked_until.replace(year=9999))


@planted(
    "Receiver.renew_lock: the broker keeps the message from others for as long",
    "Settlement.test_a_renewed_lock_lasts_longer",
    needs=("lock_renewal",),
)
class RenewsLocally(DefectiveReceiver):
    """Its broker lets it settle what it received, whether or not the lock has ended, and once only."""

    def __init__(self, transport: DefectiveTransport, source: Source) -> None:
        super().__init__(transport, source)
        self._renewed: set[object] = set()

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        if delivery.lock_token not in self._renewed:
            renewed = await super().renew_lock(delivery)  # it has a lock
            self._renewed.add(delivery.lock_token)
            return renewed
        assert delivery.locked_until is not None
        return replace(delivery, locked_until=delivery.locked_until + timedelta(seconds=1))

    async def complete(self, delivery: Delivery) -> None:
        try:
            await super().complete(delivery)
        except TransportError as error:
            if error.reason is not FailureReason.LOCK_LOST or delivery.lock_token not in self._renewed:
                raise
        self._renewed.discard(delivery.lock_token)


@planted(
    "Receiver.receive: a cancelled call takes no later message",
    "Receive.test_a_cancelled_receive_takes_nothing_that_comes_later",
)
class ReceivesOnWhenCancelled(DefectiveReceiver):
    """What it takes then comes with its own next call, and is locked until then."""

    _polling: asyncio.Task[list[Delivery]] | None = None

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        polling = self._polling or asyncio.ensure_future(super().receive(max_messages, wait))
        self._polling = polling
        try:
            deliveries = await asyncio.shield(polling)
        except TransportError:
            self._polling = None
            raise
        self._polling = None
        return deliveries


@planted(
    "Receiver.dead_letter: a message of the largest size can be dead-lettered",
    "Settlement.test_the_largest_message_can_be_dead_lettered",
    needs=("dead_letter",),
    limited=True,
)
class DeadLettersACopyWithTheReason(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        properties = {**delivery.message.application_properties, "reason": reason, "description": description[:1000]}
        self.transport.check_size(replace(delivery.message, application_properties=properties))
        await super().dead_letter(delivery, reason, description)


@planted(
    "Receiver.receive: at most `max_messages` are returned",
    "Receive.test_no_more_come_than_were_asked_for",
    "Receive.test_what_was_not_asked_for_stays_for_others",
    "Receive.test_messages_come_in_the_brokers_order_over_several_receives",
)
class DeliversMoreThanAsked(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await super().receive(max_messages + 5, wait)


@planted(
    "Receiver.receive: it returns as soon as there is at least one message",
    "Receive.test_a_long_poll_ends_with_the_first_message",
    "Settlement.test_settling_does_not_wait_for_a_long_poll",
    "Settlement.test_several_who_settle_one_after_the_other_do_not_wait_for_a_long_poll",
)
class WaitsForAllOfItsTime(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        await asyncio.sleep(wait)
        return await super().receive(max_messages, 0)


@planted("Receiver.receive: without waiting it polls once", "Receive.test_asking_once_finds_what_is_there")
class NeverFindsAtOnce(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await super().receive(max_messages, wait) if wait else []


@planted("Receiver.receive: without waiting it returns immediately", "Receive.test_asking_once_returns_without_waiting")
class WaitsWhenAskedOnce(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await super().receive(max_messages, max(wait, limits().asking_once + 0.2))


@planted(
    "Receiver.receive: deliveries are in the broker's order",
    "Send.test_sends_one_after_the_other_keep_their_order",
    "Topics.test_every_subscription_gets_every_message_in_order",
)
class DeliversInReverse(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return (await super().receive(max_messages, wait))[::-1]


@planted(
    "Receiver.receive: a cancellation ends the call as cancelled",
    "Cancellation.test_a_cancellation_is_not_swallowed",
    "Cancellation.test_a_long_poll_is_cut_off_and_the_receiver_goes_on",
    "Cancellation.test_connecting_to_receive_is_cut_off_and_the_receiver_goes_on",
)
class SwallowsCancellations(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        try:
            return await super().receive(max_messages, wait)
        except asyncio.CancelledError:
            return []


@planted(
    "Receiver: a delivery stays in the broker until it is completed",
    "Receive.test_a_closed_receiver_releases_what_it_held",
    "Settlement.test_an_abandoned_message_is_redelivered_and_counts",
    "Receive.test_receivers_of_a_closed_transport_release_what_they_held",
)
class CompletesOnDelivery(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        deliveries = await super().receive(max_messages, wait)
        await asyncio.shield(super().complete_batch(deliveries))  # at most once
        return deliveries


@planted(
    "Receiver.receive: a source that can't be read is an error",
    "Receive.test_a_missing_source_is_reported",
    "Topics.test_a_missing_subscription_is_reported",
    "Receive.test_a_source_that_is_made_later_is_found_by_the_same_receiver",
    "Lifecycle.test_closing_a_receiver_ends_its_long_poll",
    "Faults.test_a_long_poll_ends_when_its_broker_stops_and_the_receiver_works_again",
)
class CallsMissingSourcesEmpty(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        try:
            return await super().receive(max_messages, wait)
        except TransportError:
            return []


@planted(
    "Receiver.complete: a lock that has ended is *lock-lost*",
    "Settlement.test_settling_twice_is_a_lost_lock",
    "Settlement.test_a_lock_that_ended_settles_nothing",
    "Settlement.test_the_lock_of_a_settled_message_is_lost",
    "Settlement.test_a_lock_that_ended_dead_letters_nothing",
)
class SwallowsLostLocks(DefectiveReceiver):
    async def complete(self, delivery: Delivery) -> None:
        with contextlib.suppress(TransportError):
            await super().complete(delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        with contextlib.suppress(TransportError):
            await super().dead_letter(delivery, reason, description)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        with contextlib.suppress(TransportError):
            return await super().renew_lock(delivery)
        return delivery


@planted(
    "Receiver: a delivery is locked: no other receiver gets it",
    "Receive.test_two_receivers_never_hold_the_same_message",
    "Receive.test_a_locked_message_is_not_delivered_to_others",
    "Receive.test_messages_come_in_the_brokers_order_over_several_receives",
)
class LocksNothing(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await self.transport.inner.admin.peek(self.source, max_messages)


@planted(
    "Receiver.receive: a delivery has the end of its lock",
    "Receive.test_the_end_of_a_lock_is_reported",
    needs=("lock_renewal",),
)
class ReportsNoEndOfLocks(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return [replace(delivery, locked_until=None) for delivery in await super().receive(max_messages, wait)]


@planted(
    "Receiver.receive: each delivery has the broker's own position",
    "Receive.test_the_broker_s_positions_are_unique",
    "Receive.test_a_delivery_has_its_properties",
)
class NumbersAllAlike(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        deliveries = await super().receive(max_messages, wait)
        return [replace(delivery, sequence_number="1", dead_letter_reason="") for delivery in deliveries]


@planted("Receiver.complete_batch: all of a batch is completed", "Settlement.test_a_batch_completes_all_of_it")
class CompletesHalfOfABatch(DefectiveReceiver):
    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        await super().complete_batch(deliveries[: len(deliveries) // 2])
        return [None] * len(deliveries)


@planted(
    "Receiver.dead_letter: the message is moved, and its queue does not keep it",
    "Settlement.test_a_dead_letter_is_gone_from_its_queue",
    needs=("dead_letter",),
)
class DeadLettersACopy(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await super().dead_letter(delivery, reason, description)
        await self.transport.inner.sender(self.source.entity).send(delivery.message)


@planted(
    "Receiver.receive: a cancelled call returns control within milliseconds",
    "Cancellation.test_a_long_poll_is_cut_off_and_the_receiver_goes_on",
    "Cancellation.test_connecting_to_receive_is_cut_off_and_the_receiver_goes_on",
)
class EndsItsPollsSlowly(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        try:
            return await super().receive(max_messages, wait)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)
            raise


@planted("Receiver.receive: it waits at most `wait` seconds", "Receive.test_a_wait_ends_when_its_time_is_over")
class OverstaysItsWait(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await super().receive(max_messages, wait and wait + limits().patience)


@planted(
    "Receiver.abandon: a message is redelivered however often it was delivered",
    "Settlement.test_a_message_that_is_abandoned_often_stays_as_it_was",
)
class DropsWhatComesOften(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        found = await super().receive(max_messages, wait)
        often = [delivery for delivery in found if delivery.delivery_count > 3]
        await self.inner.complete_batch(often)
        return [delivery for delivery in found if delivery not in often]


@planted(
    "Receiver.abandon: a redelivered message has all its fields",
    "Settlement.test_a_message_that_is_abandoned_often_stays_as_it_was",
)
class RedeliversWithoutProperties(DefectiveReceiver):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return [
            replace(delivery, message=replace(delivery.message, application_properties={}))
            if delivery.delivery_count > 1
            else delivery
            for delivery in await super().receive(max_messages, wait)
        ]


@planted(
    "Receiver.close: it closes this receiver, and no other of its transport",
    "Lifecycle.test_closing_one_object_leaves_the_others_open",
)
class ClosesOthersToo(DefectiveReceiver):
    def __init__(self, transport: DefectiveTransport, source: Source) -> None:
        super().__init__(transport, source)
        self._all: list[Receiver] = vars(transport).setdefault("receivers", [])
        self._all.append(self.inner)

    async def close(self) -> None:
        for receiver in self._all:
            await receiver.close()


@planted(
    "Receiver.dead_letter: a cancelled call returns control within milliseconds",
    "Cancellation.test_dead_lettering_is_cut_off",
    needs=("dead_letter",),
)
class DeadLettersOnWhenCancelled(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        try:
            await super().dead_letter(delivery, reason, description)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)
            raise


@planted(
    "Receiver.dead_letter: what the broker did not confirm is raised",
    "Faults.test_dead_lettering_at_a_stopped_broker_fails",
    needs=("dead_letter",),
)
class SwallowsFailedDeadLetters(DefectiveReceiver):
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        try:
            await super().dead_letter(delivery, reason, description)
        except TransportError as error:
            if error.kind is not FailureKind.UNAVAILABLE:
                raise


@planted(
    "Receiver.read_ahead: what was fetched and not returned is released when the receiver closes",
    "Receive.test_reading_ahead_takes_no_more_than_it_may_and_loses_nothing",
)
class LosesWhatItReadAhead(DefectiveReceiver):
    _ahead = 0

    def read_ahead(self, messages: int) -> None:
        self._ahead = messages

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        found = await super().receive(max(max_messages, self._ahead), wait)
        await self.inner.complete_batch(found[max_messages:])
        return found[:max_messages]


@planted(
    "Receiver.read_ahead: at most so many are locked, those that were returned included",
    "Receive.test_reading_ahead_takes_no_more_than_it_may_and_loses_nothing",
)
class ReadsAheadTooFar(DefectiveReceiver):
    _ahead = 0
    _fetched: Sequence[Delivery] = ()

    def read_ahead(self, messages: int) -> None:
        self._ahead = messages

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if not self._fetched:
            self._fetched = await super().receive(max_messages + 2 * self._ahead, wait)
        found, self._fetched = self._fetched[:max_messages], self._fetched[max_messages:]
        return list(found)


@planted(
    "Receiver.renew_lock: a cancelled call returns control within milliseconds",
    "Cancellation.test_renewing_is_cut_off",
    needs=("lock_renewal",),
)
class RenewsOnWhenCancelled(DefectiveReceiver):
    async def renew_lock(self, delivery: Delivery) -> Delivery:
        try:
            return await super().renew_lock(delivery)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)
            raise


class _ReleasesAll(DefectiveReceiver):
    """Remembers what it has returned, to release it at the wrong moment."""

    def __init__(self, transport: DefectiveTransport, source: Source) -> None:
        super().__init__(transport, source)
        self._given: list[Delivery] = []

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        found = await super().receive(max_messages, wait)
        self._given += found
        return found

    async def release(self) -> None:
        for delivery in self._given:
            with contextlib.suppress(TransportError):
                await self.inner.abandon(delivery)


@planted(
    "Receiver.abandon: one delivery is released, and no other",
    "Settlement.test_settling_one_leaves_the_others_locked",
)
class AbandonsAll(_ReleasesAll):
    async def abandon(self, delivery: Delivery) -> None:
        await super().abandon(delivery)
        await self.release()


@planted(
    "Receiver.complete: one that fails leaves the other deliveries locked",
    "Settlement.test_settling_one_leaves_the_others_locked",
)
class LosesAllLocksByAFailure(_ReleasesAll):
    async def complete(self, delivery: Delivery) -> None:
        try:
            await super().complete(delivery)
        except TransportError:
            await self.release()
            raise


@planted(
    "Receiver.receive: a cancelled call leaves the receiver usable, and earlier deliveries locked",
    "Receive.test_a_cancelled_receive_leaves_what_was_received_locked",
)
class LosesAllLocksWhenCancelled(_ReleasesAll):
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        try:
            return await super().receive(max_messages, wait)
        except asyncio.CancelledError:
            await self.release()
            raise
