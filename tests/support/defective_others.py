"""Administrations and transports with one defect each, and false claims."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import (
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    SessionReceiver,
    Transport,
)
from plain_transport import Defect, PlainAdmin, PlainReceiver, PlainSender, PlainTransport, caught_by, false_claim

T = TypeVar("T")


@caught_by(
    "Probe.test_no_consumer_ever_sees_it",
    "Probe.test_it_leaves_nothing_behind",
    "Probe.test_a_topic_is_probed_as_well",
)
class ProbesWithAMessage(PlainAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.transport.inner.sender(entity).send(Message(b"", message_id="probe"))


@caught_by(
    "Probe.test_a_stopped_broker_fails_it_until_it_is_back",
    "Probe.test_a_frozen_broker_fails_it_by_its_limit",
    "Probe.test_an_entity_that_was_probed_and_deleted_fails_it",
)
class ProbesNothing(PlainAdmin):
    async def probe(self, entity: Entity) -> None:
        pass


@caught_by(
    "Probe.test_a_missing_entity_fails_it",
)
class ProbesTheConnection(PlainAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.check()


@caught_by(
    "Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does",
)
class ProbesByReading(PlainAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.properties(entity)


@caught_by(
    "Faults.test_administration_of_a_stopped_broker_fails_and_guesses_nothing",
)
class GuessesExistence(PlainAdmin):
    async def exists(self, entity: Entity) -> bool:
        try:
            return await super().exists(entity)
        except TransportError:
            return False


@caught_by(
    "Admin.test_making_an_entity_again_changes_nothing",
)
class MakesAnew(PlainAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        existed = await self.delete(entity)
        await super().create(entity, properties)
        return not existed


@caught_by(
    "Settlement.test_a_message_that_was_delivered_too_often_is_dead_lettered",
)
class ForgetsTheDeliveryLimit(PlainAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        self._asked = properties or QueueProperties()
        return await super().create(entity, replace(self._asked, max_delivery_count=None))

    async def properties(self, entity: Entity) -> QueueProperties:
        return self._asked


@caught_by(
    "Receive.test_one_consumer_at_a_time",
    "Receive.test_the_next_consumer_begins_with_what_the_last_one_gave_back",
)
class SharesQueuesForOne(PlainAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        return await super().create(entity, replace(properties or QueueProperties(), single_consumer=False))


@caught_by(
    "Admin.test_counts_tell_what_waits_and_what_is_locked",
)
class CountsNoLocked(PlainAdmin):
    async def counts(self, source: Source) -> QueueCounts:
        return replace(await super().counts(source), locked=0)


@caught_by(
    "Admin.test_positions_tell_what_is_settled_by_whomever",
)
class SettlesWhatIsLocked(PlainAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        told = await super().positions(entity)
        return told if (await self.counts(Source(entity))).active else replace(told, oldest=None)


@caught_by(
    "Admin.test_positions_tell_what_is_settled_by_whomever",
)
class SettlesAllButTheNewest(PlainAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        told = await super().positions(entity)
        return replace(told, oldest=None if told.oldest is None else told.newest)


@caught_by(
    "Admin.test_positions_tell_what_is_settled_by_whomever",
)
class NeverSeesAnythingSettled(PlainAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        told = await super().positions(entity)
        return replace(told, oldest=told.oldest and 1)


@caught_by(
    "Admin.test_purging_empties_a_queue_and_tells_how_many",
)
class PurgesNothing(PlainAdmin):
    async def purge(self, source: Source) -> int:
        return (await self.counts(source)).active


@caught_by(
    "Admin.test_peeking_locks_and_takes_nothing",
)
class PeeksByTaking(PlainAdmin):
    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        receiver = self.transport.inner.receiver(source)
        return await receiver.receive(max_messages, 0.2)


@caught_by(
    "Admin.test_entities_are_listed_by_path",
)
class ListsInAnyOrder(PlainAdmin):
    async def list_entities(self, prefix: str = "") -> list[Entity]:
        return (await super().list_entities(prefix))[::-1]


@caught_by(
    "Lifecycle.test_closing_does_not_wait_for_a_frozen_broker",
)
class ClosesSlowly(PlainTransport):
    async def _close(self) -> None:
        await super()._close()
        await asyncio.sleep(2.8)


@caught_by(
    "Lifecycle.test_a_block_closes_its_transport",
)
class ForgetsToEnd(PlainTransport):
    async def close(self) -> None:
        await self._close()


@caught_by(
    "Lifecycle.test_a_long_poll_ends_with_its_transport",
)
class ClosesWithTheWrongReason(PlainTransport):
    def receiver(self, source: Source) -> PlainReceiver:
        receiver = PlainReceiver(self, source)
        sound = receiver.receive

        async def receive(max_messages: int, wait: float) -> list[Delivery]:
            try:
                return await sound(max_messages, wait)
            except TransportError as error:
                raise TransportError(str(error), error.kind, FailureReason.CONNECTION) from None

        receiver.receive = receive  # type: ignore[method-assign]
        return receiver


@caught_by(
    "Lifecycle.test_closing_leaves_no_task_behind",
)
class LeavesATaskBehind(PlainTransport):
    def sender(self, entity: Entity) -> PlainSender:
        self._beat = asyncio.ensure_future(asyncio.sleep(3600))
        return PlainSender(self, entity)


@caught_by(
    "Lifecycle.test_a_faulted_transport_keeps_its_first_cause",
)
class KeepsTheLastCause(PlainTransport):
    async def fault(self, cause: BaseException) -> None:
        await super().fault(cause)
        self._fault = cause


@caught_by(
    "Lifecycle.test_making_objects_does_no_io",
)
class ConnectsWhenMade(PlainTransport):
    def __init__(self, inner: Transport, defect: Defect) -> None:
        super().__init__(inner, defect)
        self._checking = asyncio.ensure_future(self.admin.check())

    def sender(self, entity: Entity) -> PlainSender:
        outer = self

        class Sender(PlainSender):
            async def send(self, message: Message) -> None:
                await outer._checking
                await super().send(message)

        return Sender(self, entity)


@caught_by(
    "Lifecycle.test_no_password_is_shown",
)
class ShowsItsPassword(PlainTransport):
    @staticmethod
    def endpoint_of(inner: Transport) -> Endpoint:
        return replace(inner.endpoint, url="defective://user:pass%2Fword@somewhere")


@caught_by(
    "Sessions.test_a_session_is_read_alone_and_in_order",
)
class FindsNoSession(PlainTransport):
    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        return None


@caught_by(
    "Admin.test_an_entity_exists_from_its_making_to_its_end",
    "Topics.test_a_topic_exists_from_its_making_to_its_end",
    "Topics.test_a_queue_is_no_topic_and_a_topic_no_queue",
)
class FindsWhateverIsAskedFor(PlainAdmin):
    async def exists(self, entity: Entity) -> bool:
        return True


@caught_by("Admin.test_settings_of_a_missing_queue_are_not_found", "Admin.test_a_default_time_to_live_is_told")
class TellsTheDefaults(PlainAdmin):
    async def properties(self, entity: Entity) -> QueueProperties:
        return QueueProperties()


@caught_by(
    "Admin.test_counts_tell_what_waits_and_what_is_locked",
    "Admin.test_counts_tell_what_was_dead_lettered",
    "Admin.test_counts_of_a_missing_queue_are_not_found",
    "Topics.test_counts_are_each_subscriptions_own",
)
class CountsNothing(PlainAdmin):
    async def counts(self, source: Source) -> QueueCounts:
        return QueueCounts()


@caught_by(
    "Admin.test_a_deleted_queue_takes_its_messages_with_it", "Admin.test_an_entity_exists_from_its_making_to_its_end"
)
class DeletesNothing(PlainAdmin):
    async def delete(self, entity: Entity) -> bool:
        return await self.exists(entity)


@caught_by("Admin.test_what_users_name_is_no_system_entity")
class KeepsEveryNameForItself(PlainAdmin):
    def is_system_entity(self, entity: Entity) -> bool:
        return True


@caught_by("Topics.test_a_subscription_of_a_missing_topic_is_not_found")
class MakesMissingTopics(PlainAdmin):
    async def create_subscription(self, topic: Entity, name: str) -> bool:
        await self.create(topic)
        return await super().create_subscription(topic, name)


@caught_by("Cancellation.test_administration_is_cut_off_and_goes_on", "Cancellation.test_peeking_is_cut_off")
class IsCutOffSlowly(PlainAdmin):
    async def check(self) -> None:
        await _slowly(super().check())

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        return await _slowly(super().peek(source, max_messages))


async def _slowly(call: Awaitable[T]) -> T:
    try:
        return await call
    except asyncio.CancelledError:
        await asyncio.sleep(1.6)
        raise


@caught_by("Lifecycle.test_listeners_hear_of_the_end_once")
class TellsItsEndTwice(PlainTransport):
    def _end(self) -> None:
        listeners = list(self._listeners)
        super()._end()
        for listener in listeners:
            listener(self)


@caught_by("Lifecycle.test_an_ordinary_close_has_no_cause")
class FaultsWhenClosed(PlainTransport):
    async def close(self) -> None:
        await self.fault(RuntimeError("closed"))


@caught_by("Lifecycle.test_an_endpoint_names_a_broker")
class IsAnotherBrokerEachTime(PlainTransport):
    @staticmethod
    def endpoint_of(inner: Transport) -> Endpoint:
        return replace(inner.endpoint, identity=("defective", str(id(inner))))


@caught_by("Lifecycle.test_closing_again_is_no_failure")
class ClosesOnce(PlainTransport):
    _closed = False

    async def _close(self) -> None:
        if self._closed:
            raise TransportError("it is closed already", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        self._closed = True
        await super()._close()


@caught_by("Faults.test_what_a_broker_can_never_take_is_refused_while_it_is_stopped")
class AsksBeforeItRefuses(PlainTransport):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, scheduling=False)

    def sender(self, entity: Entity) -> PlainSender:
        outer = self

        class Sender(PlainSender):
            async def send(self, message: Message) -> None:
                await outer.admin.check()
                outer.check_message(entity, message)
                await super().send(message)

        return Sender(self, entity)


@caught_by("Send.test_a_measure_grows_with_all_that_a_message_holds")
class MeasuresBodiesOnly(PlainTransport):
    def measure(self, message: Message) -> int:
        return len(message.body)


false_claim("Send.test_a_time_to_live_comes_back_to_the_microsecond", time_to_live=False)
false_claim("Settlement.test_a_renewed_lock_lasts_longer", lock_renewal=False)
false_claim("Probe.test_it_passes_where_sends_pass", probes=False)
false_claim("Topics.test_every_subscription_gets_every_message_in_order", topics=False)
false_claim("Admin.test_a_queue_that_requires_sessions_says_so", sessions=False)
false_claim("Faults.test_what_was_accepted_outlives_a_crash", durable=True)
false_claim("Receive.test_the_next_consumer_begins_with_what_the_last_one_gave_back", ordered_consumer=False)
