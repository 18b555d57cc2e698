"""Transports and administrations with one defect each, and false claims."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing.conformance._broker import limits
from pairmq.testing.defects._defect import (
    Defect,
    DefectiveAdmin,
    DefectiveReceiver,
    DefectiveSender,
    DefectiveTransport,
    false_claim,
    planted,
)
from pairmq.transport import (
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    SessionReceiver,
    Transport,
)

T = TypeVar("T")


@planted(
    "Admin.probe: it is invisible to consumers",
    "Probe.test_no_consumer_ever_sees_it",
    "Probe.test_it_leaves_nothing_behind",
    "Probe.test_a_topic_is_probed_as_well",
    needs=("probes",),
)
class ProbesWithAMessage(DefectiveAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.transport.inner.sender(entity).send(Message(b"", message_id="probe"))


@planted("Admin.probe: it fetches no message", "Probe.test_it_touches_no_message", needs=("probes",))
class ProbesByFetching(DefectiveAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.transport.inner.admin.probe(entity)
        if entity.kind is EntityKind.QUEUE:
            receiver = self.transport.inner.receiver(Source(entity))
            for delivery in await receiver.receive(1, 0.0):
                await receiver.abandon(delivery)
            await receiver.close()


@planted(
    "Admin.probe: it fails where a send would",
    "Probe.test_a_stopped_broker_fails_it_until_it_is_back",
    "Probe.test_a_frozen_broker_fails_it_by_its_limit",
    "Probe.test_an_entity_that_was_probed_and_deleted_fails_it",
    needs=("probes",),
)
class ProbesNothing(DefectiveAdmin):
    async def probe(self, entity: Entity) -> None:
        pass


@planted(
    "Admin.probe: it fails for an entity that does not exist", "Probe.test_a_missing_entity_fails_it", needs=("probes",)
)
class ProbesTheConnection(DefectiveAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.check()


@planted(
    "Admin.probe: it checks that the entity accepts writes",
    "Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does",
    needs=("probes",),
)
class ProbesByReading(DefectiveAdmin):
    async def probe(self, entity: Entity) -> None:
        await self.properties(entity)


@planted(
    "Admin.exists: a broker that could not be queried is an error",
    "Faults.test_administration_of_a_stopped_broker_fails_and_guesses_nothing",
)
class GuessesExistence(DefectiveAdmin):
    async def exists(self, entity: Entity) -> bool:
        try:
            return await super().exists(entity)
        except TransportError:
            return False


@planted("Admin.create: an existing entity is left unchanged", "Admin.test_making_an_entity_again_changes_nothing")
class RecreatesWhatExists(DefectiveAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        existed = await self.delete(entity)
        await super().create(entity, properties)
        return not existed


@planted(
    "QueueProperties: the broker dead-letters what was delivered `max_delivery_count` times",
    "Settlement.test_a_message_that_was_delivered_too_often_is_dead_lettered",
    needs=("dead_letter",),
)
class ForgetsTheDeliveryLimit(DefectiveAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        self._asked = properties or QueueProperties()
        return await super().create(entity, replace(self._asked, max_delivery_count=None))

    async def properties(self, entity: Entity) -> QueueProperties:
        return self._asked


@planted(
    "QueueProperties: with `single_consumer` one receiver at a time gets messages",
    "Receive.test_one_consumer_at_a_time",
    "Receive.test_the_next_consumer_begins_with_what_the_last_one_gave_back",
    needs=("ordered_consumer",),
)
class SharesSingleConsumerQueues(DefectiveAdmin):
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        return await super().create(entity, replace(properties or QueueProperties(), single_consumer=False))


@planted("Admin.counts: locked messages are included", "Admin.test_counts_report_what_waits_and_what_is_locked")
class CountsNoLocked(DefectiveAdmin):
    async def counts(self, source: Source) -> QueueCounts:
        return replace(await super().counts(source), locked=0)


@planted(
    "Admin.positions: a locked message is not settled",
    "Admin.test_positions_report_what_any_consumer_has_settled",
    needs=("ordered_consumer",),
)
class ReportsLockedAsSettled(DefectiveAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        positions = await super().positions(entity)
        return positions if (await self.counts(Source(entity))).active else replace(positions, oldest=None)


@planted(
    "Admin.positions: it reports never more than what is settled",
    "Admin.test_positions_report_what_any_consumer_has_settled",
    needs=("ordered_consumer",),
)
class ReportsAllButTheNewestAsSettled(DefectiveAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        positions = await super().positions(entity)
        return replace(positions, oldest=None if positions.oldest is None else positions.newest)


@planted(
    "Admin.positions: what any consumer has settled is reported in the end",
    "Admin.test_positions_report_what_any_consumer_has_settled",
    needs=("ordered_consumer",),
)
class ReportsNothingAsSettled(DefectiveAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        positions = await super().positions(entity)
        return replace(positions, oldest=positions.oldest and 1)


@planted("Admin.purge: the messages are deleted", "Admin.test_purging_empties_a_queue_and_reports_how_many")
class PurgesNothing(DefectiveAdmin):
    async def purge(self, source: Source) -> int:
        return (await self.counts(source)).active


@planted(
    "Admin.purge: the messages of a queue are deleted, and not those of its dead-letter queue",
    "Admin.test_purging_a_queue_or_its_dead_letter_queue_leaves_the_other",
    needs=("dead_letter",),
)
class PurgesDeadLettersToo(DefectiveAdmin):
    async def purge(self, source: Source) -> int:
        if not source.dead_letter:
            await super().purge(replace(source, dead_letter=True))
        return await super().purge(source)


@planted("Admin.peek: nothing is locked or changed", "Admin.test_peeking_locks_and_takes_nothing", needs=("peek",))
class PeeksByReceiving(DefectiveAdmin):
    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        receiver = self.transport.inner.receiver(source)
        return await receiver.receive(max_messages, 0.2)


@planted("Admin.list_entities: entities are listed by path", "Admin.test_entities_are_listed_by_path")
class ListsInAnyOrder(DefectiveAdmin):
    async def list_entities(self, prefix: str = "") -> list[Entity]:
        return (await super().list_entities(prefix))[::-1]


@planted(
    "Admin.exists: it is False for what does not exist",
    "Admin.test_an_entity_exists_from_its_making_to_its_end",
    "Topics.test_a_topic_exists_from_its_making_to_its_end",
    "Topics.test_a_queue_is_no_topic_and_a_topic_no_queue",
)
class FindsWhateverIsAskedFor(DefectiveAdmin):
    async def exists(self, entity: Entity) -> bool:
        return True


@planted(
    "Admin.properties: the queue's own settings are read",
    "Admin.test_settings_of_a_missing_queue_are_not_found",
    "Admin.test_a_default_time_to_live_is_reported",
)
class ReportsDefaultSettings(DefectiveAdmin):
    async def properties(self, entity: Entity) -> QueueProperties:
        return QueueProperties()


@planted(
    "Admin.counts: messages are counted exactly",
    "Admin.test_counts_report_what_waits_and_what_is_locked",
    "Admin.test_counts_report_what_was_dead_lettered",
    "Admin.test_counts_of_a_missing_queue_are_not_found",
    "Topics.test_counts_are_each_subscriptions_own",
)
class CountsNothing(DefectiveAdmin):
    async def counts(self, source: Source) -> QueueCounts:
        return QueueCounts()


@planted(
    "Admin.delete: the entity and its messages are deleted",
    "Admin.test_a_deleted_queue_takes_its_messages_with_it",
    "Admin.test_an_entity_exists_from_its_making_to_its_end",
)
class DeletesNothing(DefectiveAdmin):
    async def delete(self, entity: Entity) -> bool:
        return await self.exists(entity)


@planted(
    "Admin.is_system_entity: an entity of users is not a system entity",
    "Admin.test_what_users_name_is_no_system_entity",
)
class ReservesEveryName(DefectiveAdmin):
    def is_system_entity(self, entity: Entity) -> bool:
        return True


@planted(
    "Admin.create_subscription: a missing topic is *not-found*",
    "Topics.test_a_subscription_of_a_missing_topic_is_not_found",
    needs=("topics",),
)
class CreatesMissingTopics(DefectiveAdmin):
    async def create_subscription(self, topic: Entity, name: str) -> bool:
        await self.create(topic)
        return await super().create_subscription(topic, name)


@planted(
    "Admin.check: a cancelled call returns control within milliseconds",
    "Cancellation.test_administration_is_cut_off_and_goes_on",
    "Cancellation.test_peeking_is_cut_off",
)
class AdministersOnWhenCancelled(DefectiveAdmin):
    async def check(self) -> None:
        await _slowly(super().check())

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        return await _slowly(super().peek(source, max_messages))


@planted(
    "Admin.purge: a cancelled call returns control within milliseconds",
    "Cancellation.test_administration_is_cut_off_and_goes_on",
)
class PurgesOnWhenCancelled(DefectiveAdmin):
    async def purge(self, source: Source) -> int:
        return await _slowly(super().purge(source))


async def _slowly(call: Awaitable[T]) -> T:
    try:
        return await call
    except asyncio.CancelledError:
        await asyncio.sleep(limits().slack + 1.0)
        raise


@planted(
    "Transport.close: it returns within 2 s even if the broker is unresponsive",
    "Lifecycle.test_closing_does_not_wait_for_a_frozen_broker",
)
class ClosesSlowly(DefectiveTransport):
    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(2.0 + limits().slack + 0.3)


@planted("Transport.ended: a closed transport has ended", "Lifecycle.test_a_block_closes_its_transport")
class NeverEnds(DefectiveTransport):
    @property
    def ended(self) -> bool:
        return False


@planted(
    "Transport.close: calls in flight end with reason *closed*", "Lifecycle.test_a_long_poll_ends_with_its_transport"
)
class ClosesWithTheWrongReason(DefectiveTransport):
    def receiver(self, source: Source) -> DefectiveReceiver:
        receiver = DefectiveReceiver(self, source)
        sound = receiver.receive

        async def receive(max_messages: int, wait: float) -> list[Delivery]:
            try:
                return await sound(max_messages, wait)
            except TransportError as error:
                raise TransportError(str(error), error.kind, FailureReason.CONNECTION) from None

        receiver.receive = receive  # type: ignore[method-assign]
        return receiver


@planted("Transport.close: everything is closed", "Lifecycle.test_closing_leaves_no_task_behind")
class LeavesATaskBehind(DefectiveTransport):
    def sender(self, entity: Entity) -> DefectiveSender:
        self._beat = asyncio.ensure_future(asyncio.sleep(3600))
        return DefectiveSender(self, entity)


@planted("Transport.fault: the first cause is kept", "Lifecycle.test_a_faulted_transport_keeps_its_first_cause")
class KeepsTheLastCause(DefectiveTransport):
    async def fault(self, cause: BaseException) -> None:
        await super().fault(cause)
        self._fault = cause


@planted("Transport.sender: making objects does no IO", "Lifecycle.test_making_objects_does_no_io")
class ConnectsWhenMade(DefectiveTransport):
    def __init__(self, inner: Transport, defect: Defect, url: str) -> None:
        super().__init__(inner, defect, url)
        self._checking = asyncio.ensure_future(self.admin.check())

    def sender(self, entity: Entity) -> DefectiveSender:
        outer = self

        class Sender(DefectiveSender):
            async def send(self, message: Message) -> None:
                await outer._checking
                await super().send(message)

        return Sender(self, entity)


@planted("Endpoint: the URL has its password left out", "Lifecycle.test_no_password_is_shown", password=True)
class ShowsItsPassword(DefectiveTransport):
    @property
    def endpoint(self) -> Endpoint:
        return replace(super().endpoint, url=self.url)


@planted(
    "Transport.accept_session: a session that has messages and is not locked is found",
    "Sessions.test_a_session_is_read_alone_and_in_order",
    needs=("sessions",),
)
class FindsNoSession(DefectiveTransport):
    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        return None


@planted("Transport.on_end: a listener is called once", "Lifecycle.test_listeners_hear_of_the_end_once")
class NotifiesTwice(DefectiveTransport):
    def _end(self) -> None:
        listeners = list(self._listeners)
        super()._end()
        for listener in listeners:
            listener(self)


@planted("Transport.fault_cause: a regular close has no cause", "Lifecycle.test_an_ordinary_close_has_no_cause")
class FaultsWhenClosed(DefectiveTransport):
    async def close(self) -> None:
        await self.fault(RuntimeError("closed"))


@planted("Endpoint: two endpoints of one identity are the same broker", "Lifecycle.test_an_endpoint_names_a_broker")
class IsAnotherBrokerEachTime(DefectiveTransport):
    @property
    def endpoint(self) -> Endpoint:
        return replace(super().endpoint, identity=("defective", str(id(self))))


@planted("Transport.close: it is idempotent and never raises", "Lifecycle.test_closing_again_is_no_failure")
class ClosesOnce(DefectiveTransport):
    _closed = False

    async def close(self) -> None:
        if self._closed:
            raise TransportError("it is closed already", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        self._closed = True
        await super().close()


@planted(
    "Transport.check_message: what can never be accepted is refused in every state of the broker",
    "Faults.test_what_a_broker_can_never_take_is_refused_while_it_is_stopped",
)
class AsksBeforeItRefuses(DefectiveTransport):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, scheduling=False)

    def check_message(self, entity: Entity, message: Message) -> None:
        Transport.check_message(self, entity, message)

    def sender(self, entity: Entity) -> DefectiveSender:
        outer = self

        class Sender(DefectiveSender):
            async def send(self, message: Message) -> None:
                await outer.admin.check()
                outer.check_message(entity, message)
                await super().send(message)

        return Sender(self, entity)


@planted(
    "Transport.measure: all that a message holds is counted", "Send.test_a_measure_grows_with_all_that_a_message_holds"
)
class MeasuresBodiesOnly(DefectiveTransport):
    def measure(self, message: Message) -> int:
        return len(message.body)


false_claim("Send.test_a_time_to_live_comes_back_to_the_microsecond", time_to_live=False)
false_claim("Settlement.test_a_renewed_lock_lasts_longer", lock_renewal=False)
false_claim("Probe.test_it_passes_where_sends_pass", probes=False)
false_claim("Topics.test_every_subscription_gets_every_message_in_order", topics=False)
false_claim("Admin.test_a_queue_that_requires_sessions_has_the_property", sessions=False)
false_claim("Faults.test_what_was_accepted_outlives_a_crash", durable=True)
false_claim("Receive.test_the_next_consumer_begins_with_what_the_last_one_gave_back", ordered_consumer=False)
