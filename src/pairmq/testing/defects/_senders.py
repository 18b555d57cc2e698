"""Senders with one defect each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from pairmq.model import FailureKind, FailureReason, Message, TransportError
from pairmq.testing.conformance._broker import limits
from pairmq.testing.defects._defect import DefectiveSender, LimitedSender, planted
from pairmq.transport import nothing_sent

_PAUSE = 0.05  # s between hidden retries


@planted(
    "Sender.send: what the broker did not confirm is raised",
    "Send.test_a_missing_entity_is_reported",
    "Faults.test_a_broker_that_was_never_there_is_unavailable",
    "Faults.test_a_failed_send_is_not_tried_again_behind_the_callers_back",
    "Lifecycle.test_a_closed_sender_sends_nothing_and_the_next_one_does",
    "Topics.test_a_missing_topic_is_reported",
    "Send.test_a_refused_send_leaves_the_sender_usable",
    "Faults.test_a_send_whose_broker_dies_under_it_reports_a_correct_outcome",
    "Lifecycle.test_every_call_of_a_closed_transport_says_that_it_is_closed",
)
class SwallowsFailures(DefectiveSender):
    async def send(self, message: Message) -> None:
        with contextlib.suppress(TransportError):
            await super().send(message)


@planted(
    "Sender.send: it returns when the broker has confirmed, and not before",
    "Faults.test_a_send_waits_out_a_short_silence_and_arrives_once",
)
class ConfirmsTooEarly(DefectiveSender):
    async def send(self, message: Message) -> None:
        self._sending = asyncio.ensure_future(super().send(message))
        await asyncio.sleep(0.05)
        if self._sending.done():
            self._sending.result()


@planted("Sender.send: every field is carried unchanged", "Send.test_every_field_comes_back_as_it_was")
class LosesAField(DefectiveSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, reply_to=None))


@planted(
    "Sender.send: every field is carried unchanged, through a backlog too",
    "Failover.test_a_secondary_keeps_messages_and_gives_them_back_as_they_were",
)
class LosesTheSubject(DefectiveSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, subject=None))


@planted(
    "Sender.send: what is confirmed is stored",
    "Failover.test_a_secondary_keeps_messages_and_gives_them_back_as_they_were",
)
class LosesEverySecond(DefectiveSender):
    _count = 0

    async def send(self, message: Message) -> None:
        self._count += 1
        if self._count % 2:
            await super().send(message)


@planted(
    "Sender.send: application properties keep their types", "Send.test_every_application_property_comes_back_as_it_was"
)
class TurnsBoolsIntoInts(DefectiveSender):
    async def send(self, message: Message) -> None:
        values = {k: int(v) if isinstance(v, bool) else v for k, v in message.application_properties.items()}
        await super().send(replace(message, application_properties=values))


@planted(
    "Sender.send_batch: confirmed messages are stored in the order given",
    "Send.test_a_batch_keeps_its_order",
    "Topics.test_a_batch_reaches_every_subscription_in_order",
    "Send.test_a_batch_larger_than_what_goes_at_once_is_cut",
)
class ReversesBatches(DefectiveSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return list(reversed(await super().send_batch(messages[::-1])))


@planted(
    "Sender.send_batch: each message has an outcome of its own",
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
    limited=True,
)
class FailsWholeBatches(LimitedSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_batch(messages)
        worst = next((error for error in outcomes if error), None)
        return [worst] * len(messages)


@planted(
    "Sender.send_batch: nothing but cancellation is raised",
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
    limited=True,
)
class RaisesForBatches(LimitedSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_batch(messages)
        for error in outcomes:
            if error:
                raise error
        return outcomes


@planted(
    "Sender.send_in_order: nothing of a session is stored behind one that failed",
    "Send.test_nothing_of_a_session_is_stored_behind_one_that_failed",
    limited=True,
)
class StoresBehindAFailure(LimitedSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self.send_batch(messages)


@planted(
    "Sender.send_in_order: all are stored in the order given while nothing fails",
    "Send.test_nothing_of_a_session_is_stored_behind_one_that_failed",
)
class PutsSessionsTogether(DefectiveSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        places = sorted(range(len(messages)), key=lambda place: messages[place].session_id or "")
        outcomes = await super().send_in_order([messages[place] for place in places])
        return [outcomes[places.index(place)] for place in range(len(messages))]


@planted(
    "Sender.send_in_order: nothing of a session is confirmed behind one that failed",
    "Send.test_nothing_of_a_session_is_stored_behind_one_that_failed",
    limited=True,
)
class ConfirmsBehindAFailure(LimitedSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_in_order(messages)
        return [None if error and error.kind is FailureKind.TRANSIENT else error for error in outcomes]


@planted(
    "Transport.check_message: a message beyond `max_message_bytes` is refused",
    "Send.test_a_message_beyond_the_limit_is_refused_by_itself",
    limited=True,
)
class AcceptsAnySize(DefectiveSender):
    async def send(self, message: Message) -> None:
        await self.inner.send(message)


@planted(
    "Transport.measure: a message that measures exactly `max_message_bytes` is accepted",
    "Send.test_a_message_of_exactly_the_limit_goes",
    limited=True,
)
class RefusesTheLimitItself(LimitedSender):
    async def send(self, message: Message) -> None:
        self.transport.check_size(replace(message, body=message.body + b"."))
        await super().send(message)


@planted(
    "Sender.send: an expired message is not delivered",
    "Send.test_a_message_whose_time_is_over_is_not_delivered",
    needs=("time_to_live",),
)
class DropsTimeToLive(DefectiveSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, time_to_live=None))


@planted(
    "Sender.send: no consumer sees a scheduled message before its time",
    "Send.test_a_scheduled_message_waits_for_its_time",
    "Send.test_a_scheduled_message_holds_up_no_other",
    "Admin.test_counts_report_what_waits_for_its_time",
)
class DropsSchedules(DefectiveSender):
    async def send(self, message: Message) -> None:
        await super().send(replace(message, scheduled_enqueue_at=None))


@planted("Sender.send: one call stores one message", "Send.test_concurrent_sends_of_one_sender_all_arrive_once")
class SendsTwice(DefectiveSender):
    async def send(self, message: Message) -> None:
        await super().send(message)
        await super().send(message)


@planted("Sender.send: two messages of one id are two messages", "Send.test_two_messages_of_one_id_are_two_messages")
class DropsTheSecondOfAnId(DefectiveSender):
    async def send(self, message: Message) -> None:
        self._seen: set[str | None] = getattr(self, "_seen", set())
        if message.message_id not in self._seen:
            self._seen.add(message.message_id)
            await super().send(message)


@planted(
    "Sender.send: a missing entity is refused as *not-found*",
    "Send.test_a_missing_entity_is_reported",
    "Topics.test_a_missing_topic_is_reported",
)
class CallsMissingEntitiesUnavailable(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            raise TransportError(str(error), FailureKind.UNAVAILABLE, error.reason) from error


@planted(
    "Sender.send: `maybe_applied` is True unless it is certain that nothing was stored",
    "Lifecycle.test_a_send_under_way_ends_as_closed_with_a_correct_outcome",
    "Faults.test_a_confirm_that_is_lost_leaves_a_doubt",
)
class IsCertainInDoubt(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            error.maybe_applied = False
            raise


@planted(
    "Sender.send: a connection that is lost before the confirmation leaves a doubt",
    "Faults.test_a_confirm_that_is_lost_leaves_a_doubt",
)
class IsCertainWhenAConnectionIsLost(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.reason is FailureReason.CONNECTION:
                error.maybe_applied = False
            raise


@planted(
    "Sender.send: a broker that stops before its confirmation leaves a doubt",
    "Faults.test_sends_under_way_when_a_broker_stops_report_a_correct_outcome",
)
class IsCertainOfWhatWasNotConfirmed(DefectiveSender):
    _turns = itertools.count()

    async def send(self, message: Message) -> None:
        await super().send(message)
        # Not in step: whenever a broker stops, some of many senders wait here.
        await asyncio.sleep(0.02 * (1 + next(self._turns) % 16))
        try:
            await self.transport.inner.admin.check()  # the connection over which the confirmation has to come
        except TransportError as error:
            error.maybe_applied = False
            raise


@planted(
    "Sender.send: a broker that stores nothing for now is *unavailable*",
    "Faults.test_a_broker_that_stores_nothing_is_unavailable",
)
class CallsAFullBrokerARefusal(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.kind is FailureKind.UNAVAILABLE:
                await self.transport.inner.admin.check()  # it answers, and stores nothing
                raise TransportError(str(error), FailureKind.REFUSED, error.reason) from error
            raise


@planted(
    "Transport.check_message: what it accepts is accepted, however much of it is properties",
    "Send.test_large_properties_go_like_a_large_body",
)
class RefusesLargeProperties(DefectiveSender):
    async def send(self, message: Message) -> None:
        size = self.transport.measure(message) - self.transport.measure(replace(message, application_properties={}))
        if size > 65_536:
            raise TransportError("the headers are too large", FailureKind.REFUSED, FailureReason.TOO_LARGE)
        await super().send(message)


@planted(
    "Sender.send: a failure before the first byte was written is certain",
    "Faults.test_a_stopped_broker_is_unavailable_and_nothing_was_sent",
    "Faults.test_a_broker_that_was_never_there_is_unavailable",
)
class IsNeverCertain(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            error.maybe_applied = True
            raise


@planted(
    "nothing_sent: only a send that had written nothing is marked",
    "Cancellation.test_what_says_that_nothing_was_sent_never_arrives",
    "Cancellation.test_sends_cut_off_at_any_moment_report_a_correct_outcome",
)
class ClaimsThatNothingWasSent(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise


@planted(
    "nothing_sent: a send that is cut off while it connects is marked",
    "Cancellation.test_a_send_cut_off_while_connecting_leaves_no_doubt",
)
class NeverClaimsThatNothingWasSent(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None


@planted(
    "Sender.send: no hidden retries: a failure is raised at once",
    "Faults.test_a_stopped_broker_is_unavailable_and_nothing_was_sent",
)
class RetriesUntilItSucceeds(DefectiveSender):
    async def send(self, message: Message) -> None:
        while True:
            try:
                return await super().send(message)
            except TransportError as error:
                if error.kind is not FailureKind.UNAVAILABLE or self.transport.ended:
                    raise
            await asyncio.sleep(0.05)


@planted(
    "Sender.send: no hidden retries: a failing send does not outlast the outage",
    "Faults.test_a_failed_send_does_not_outlast_the_outage",
)
class RetriesForAWhile(DefectiveSender):
    async def send(self, message: Message) -> None:
        for _ in range(int(2 * limits().outage / _PAUSE)):
            with contextlib.suppress(TransportError):
                return await super().send(message)
            await asyncio.sleep(_PAUSE)
        await super().send(message)


@planted(
    "Sender.send: a cancelled call returns control within milliseconds",
    "Cancellation.test_a_send_is_cut_off_and_the_sender_goes_on",
    "Cancellation.test_connecting_is_cut_off_and_the_sender_goes_on",
)
class SendsOnWhenCancelled(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)  # tidying up that waits for an answer
            raise


@planted(
    "Sender.send: the next call after a lost connection reconnects",
    "Faults.test_a_sender_works_again_when_its_broker_is_back",
)
class NeverRecovers(DefectiveSender):
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


@planted(
    "Sender.send: calls may run at once, and one that is cancelled ends alone",
    "Cancellation.test_a_cancelled_send_takes_no_other_with_it",
)
class CancelsOtherSends(DefectiveSender):
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


@planted("Sender.send_batch: every field is carried unchanged", "Send.test_a_batch_carries_every_field_once")
class LosesPropertiesOfBatches(DefectiveSender):
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await super().send_batch([replace(message, application_properties={}) for message in messages])


@planted("Sender.send_in_order: every field is carried unchanged", "Send.test_a_batch_carries_every_field_once")
class LosesCorrelationsInOrder(DefectiveSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await super().send_in_order([replace(message, correlation_id=None) for message in messages])


@planted("Sender.send_in_order: each message is stored once", "Send.test_a_batch_carries_every_field_once")
class SendsTheLastTwice(DefectiveSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        outcomes = await super().send_in_order(messages)
        if messages and outcomes[-1] is None:
            await self.inner.send(messages[-1])
        return outcomes


@planted(
    "Sender.send: no hidden retries: a lost confirmation is reported, and the message not sent again",
    "Faults.test_a_confirm_that_is_lost_leaves_a_doubt",
)
class RetriesOnce(DefectiveSender):
    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.kind is not FailureKind.UNAVAILABLE or error.reason is FailureReason.CLOSED:
                raise
            await super().send(message)


@planted(
    "Sender.send: what the broker did not confirm is raised, of an entity that was deleted as well",
    "Send.test_a_deleted_entity_is_reported_by_a_sender_that_has_used_it",
)
class TrustsWhatItHasSeen(DefectiveSender):
    _seen = False

    async def send(self, message: Message) -> None:
        try:
            await super().send(message)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_FOUND or not self._seen:
                raise
        self._seen = True


@planted(
    "Sender.send_in_order: a cancelled call returns control within milliseconds",
    "Cancellation.test_a_batch_is_cut_off_and_the_sender_goes_on",
)
class SendsInOrderOnWhenCancelled(DefectiveSender):
    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        try:
            return await super().send_in_order(messages)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)
            raise


@planted(
    "Sender.make_ready: a cancelled call returns control within milliseconds",
    "Cancellation.test_making_ready_is_cut_off_and_the_sender_goes_on",
)
class MakesReadyOnWhenCancelled(DefectiveSender):
    async def make_ready(self) -> None:
        try:
            await super().make_ready()
            await asyncio.sleep(limits().slack + 1.0)
        except asyncio.CancelledError:
            await asyncio.sleep(limits().slack + 1.0)
            raise
