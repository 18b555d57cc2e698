"""Senders with one defect each, entered with the test of the suites that has to catch it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from pairmq.model import FailureKind, FailureReason, Message, TransportError
from pairmq.transport import nothing_sent
from plain_transport import PlainSender, caught_by


@caught_by(
    "Send.test_a_missing_entity_is_told",
    "Faults.test_a_broker_that_was_never_there_is_unavailable",
    "Faults.test_a_failed_send_is_not_tried_again_behind_the_callers_back",
    "Lifecycle.test_a_closed_sender_sends_nothing_and_the_next_one_does",
    "Topics.test_a_missing_topic_is_told",
    "Send.test_a_refused_send_leaves_the_sender_usable",
    "Faults.test_a_send_whose_broker_dies_under_it_tells_no_lie",
    "Lifecycle.test_every_call_of_a_closed_transport_says_that_it_is_closed",
)
class SwallowsFailures(PlainSender):
    async def send(self, message: Message) -> None:
        with contextlib.suppress(TransportError):
            await super().send(message)


@caught_by(
    "Faults.test_a_send_waits_out_a_short_silence_and_arrives_once",
)
class ConfirmsTooEarly(PlainSender):
    async def send(self, message: Message) -> None:
        self._sending = asyncio.ensure_future(super().send(message))
        await asyncio.sleep(0.05)
        if self._sending.done():
            self._sending.result()


@caught_by(
    "Send.test_every_field_comes_back_as_it_was",
)
class LosesAField(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, reply_to=None))


@caught_by(
    "Failover.test_a_secondary_keeps_messages_and_gives_them_back_as_they_were",
)
class LosesTheSubject(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, subject=None))


@caught_by(
    "Failover.test_a_secondary_keeps_messages_and_gives_them_back_as_they_were",
)
class LosesEverySecond(PlainSender):
    _count = 0

    async def send(self, message: Message) -> None:
        self._count += 1
        if self._count % 2:
            await super().send(message)


@caught_by(
    "Send.test_every_application_property_comes_back_as_it_was",
)
class MakesIntsOfBools(PlainSender):
    async def send(self, message: Message) -> None:
        values = {k: int(v) if isinstance(v, bool) else v for k, v in message.application_properties.items()}
        await super().send(replace(message, application_properties=values))


@caught_by(
    "Send.test_a_batch_keeps_its_order",
    "Topics.test_a_batch_reaches_every_subscription_in_order",
    "Send.test_a_batch_larger_than_what_goes_at_once_is_cut",
)
class ReversesBatches(PlainSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return list(reversed(await super().send_batch(messages[::-1])))


@caught_by(
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
)
class FailsWholeBatches(PlainSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_batch(messages)
        worst = next((error for error in outcomes if error), None)
        return [worst] * len(messages)


@caught_by(
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
)
class RaisesForBatches(PlainSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_batch(messages)
        for error in outcomes:
            if error:
                raise error
        return outcomes


@caught_by(
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
)
class TakesAnySize(PlainSender):
    async def send(self, message: Message) -> None:
        await self.inner.send(message)


@caught_by(
    "Send.test_a_message_of_exactly_the_limit_goes",
)
class RefusesTheLimitItself(PlainSender):
    async def send(self, message: Message) -> None:
        self.transport.check_size(replace(message, body=message.body + b"."))
        await super().send(message)


@caught_by(
    "Send.test_a_message_whose_time_is_over_is_not_delivered",
)
class DropsTimeToLive(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, time_to_live=None))


@caught_by(
    "Send.test_a_scheduled_message_waits_for_its_time",
    "Send.test_a_scheduled_message_holds_up_no_other",
    "Admin.test_counts_tell_what_waits_for_its_time",
)
class DropsSchedules(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, scheduled_enqueue_at=None))


@caught_by(
    "Send.test_concurrent_sends_of_one_sender_all_arrive_once",
)
class SendsTwice(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(message)
        await super().send(message)


@caught_by(
    "Send.test_two_messages_of_one_id_are_two_messages",
)
class DropsTheSecondOfAnId(PlainSender):
    async def send(self, message: Message) -> None:
        self._seen: set[str | None] = getattr(self, "_seen", set())
        if message.message_id not in self._seen:
            self._seen.add(message.message_id)
            await super().send(message)


@caught_by(
    "Send.test_a_missing_entity_is_told",
    "Topics.test_a_missing_topic_is_told",
)
class CallsMissingEntitiesUnavailable(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            raise TransportError(str(error), FailureKind.UNAVAILABLE, error.reason) from error


@caught_by(
    "Lifecycle.test_a_send_under_way_ends_as_closed_and_tells_no_lie",
    "Faults.test_a_confirm_that_is_lost_leaves_a_doubt",
)
class IsCertainInDoubt(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            error.maybe_applied = False
            raise


@caught_by(
    "Faults.test_a_confirm_that_is_lost_leaves_a_doubt",
)
class IsCertainWhenAConnectionIsLost(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.reason is FailureReason.CONNECTION:
                error.maybe_applied = False
            raise


@caught_by(
    "Faults.test_sends_under_way_when_a_broker_stops_tell_no_lie",
)
class IsCertainOfWhatWasNotConfirmed(PlainSender):
    async def send(self, message: Message) -> None:
        await super().send(message)
        await asyncio.sleep(0.02)
        try:
            await self.transport.inner.admin.check()  # the connection over which the confirmation has to come
        except TransportError as error:
            error.maybe_applied = False
            raise


@caught_by(
    "Faults.test_a_broker_that_stores_nothing_is_unavailable",
)
class CallsAFullBrokerARefusal(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.reason is FailureReason.QUOTA:
                raise TransportError(str(error), FailureKind.REFUSED, error.reason) from error
            raise


@caught_by(
    "Send.test_large_properties_go_like_a_large_body",
)
class RefusesLargeProperties(PlainSender):
    async def send(self, message: Message) -> None:
        size = self.transport.measure(message) - self.transport.measure(replace(message, application_properties={}))
        if size > 65_536:
            raise TransportError("the headers are too large", FailureKind.REFUSED, FailureReason.TOO_LARGE)
        await super().send(message)


@caught_by(
    "Faults.test_a_stopped_broker_is_unavailable_and_nothing_was_sent",
    "Faults.test_a_broker_that_was_never_there_is_unavailable",
)
class IsNeverCertain(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            error.maybe_applied = True
            raise


@caught_by(
    "Cancellation.test_what_says_that_nothing_was_sent_never_arrives",
    "Cancellation.test_sends_cut_off_at_any_moment_tell_no_lie",
)
class SaysNothingWasSent(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise


@caught_by(
    "Cancellation.test_a_send_cut_off_while_connecting_leaves_no_doubt",
)
class NeverSaysThatNothingWasSent(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None


@caught_by(
    "Faults.test_a_stopped_broker_is_unavailable_and_nothing_was_sent",
)
class TriesAgain(PlainSender):
    async def send(self, message: Message) -> None:
        while True:
            try:
                return await super().send(message)
            except TransportError as error:
                if error.kind is not FailureKind.UNAVAILABLE or self.transport.ended:
                    raise
            await asyncio.sleep(0.05)


@caught_by(
    "Faults.test_a_failed_send_does_not_outlast_the_outage",
)
class TriesAgainForAWhile(PlainSender):
    async def send(self, message: Message) -> None:
        for _ in range(20):
            with contextlib.suppress(TransportError):
                return await super().send(message)
            await asyncio.sleep(0.05)
        await super().send(message)


@caught_by(
    "Cancellation.test_a_send_is_cut_off_and_the_sender_goes_on",
    "Cancellation.test_connecting_is_cut_off_and_the_sender_goes_on",
)
class IsCutOffSlowly(PlainSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError:
            await asyncio.sleep(1.6)  # tidying up that waits for an answer
            raise


@caught_by(
    "Faults.test_a_sender_works_again_when_its_broker_is_back",
)
class FailsForEver(PlainSender):
    _failed: TransportError | None = None

    async def send(self, message: Message) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            await super().send(message)
        except TransportError as error:
            if error.kind is FailureKind.UNAVAILABLE:
                self._failed = error
            raise


@caught_by(
    "Cancellation.test_a_cancelled_send_takes_no_other_with_it",
)
class TakesOthersAlongWhenCancelled(PlainSender):
    async def send(self, message: Message) -> None:
        sends: list[asyncio.Task[None]] = self.__dict__.setdefault("_sends", [])
        sending = asyncio.ensure_future(super().send(message))
        sends.append(sending)
        try:
            await sending
        except asyncio.CancelledError:
            for other in sends:
                other.cancel()
            raise
