"""Administrations with one defect each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.testing.conformance._limits import limits
from pairmq.testing.defects._defect import DefectiveAdmin, planted
from pairmq.transport import QueueCounts, QueuePositions, QueueProperties

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
        told = await super().positions(entity)
        return told if (await self.counts(Source(entity))).active else replace(told, oldest=None)


@planted(
    "Admin.positions: it reports never more than what is settled",
    "Admin.test_positions_report_what_any_consumer_has_settled",
    needs=("ordered_consumer",),
)
class ReportsAllButTheNewestAsSettled(DefectiveAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        told = await super().positions(entity)
        return replace(told, oldest=None if told.oldest is None else told.newest)


@planted(
    "Admin.positions: what any consumer has settled is reported in the end",
    "Admin.test_positions_report_what_any_consumer_has_settled",
    needs=("ordered_consumer",),
)
class ReportsNothingAsSettled(DefectiveAdmin):
    async def positions(self, entity: Entity) -> QueuePositions:
        told = await super().positions(entity)
        return replace(told, oldest=told.oldest and 1)


@planted("Admin.purge: the messages are deleted", "Admin.test_purging_empties_a_queue_and_reports_how_many")
class PurgesNothing(DefectiveAdmin):
    async def purge(self, source: Source) -> int:
        return (await self.counts(source)).active


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


async def _slowly(call: Awaitable[T]) -> T:
    try:
        return await call
    except asyncio.CancelledError:
        await asyncio.sleep(limits().slack + 1.0)
        raise
