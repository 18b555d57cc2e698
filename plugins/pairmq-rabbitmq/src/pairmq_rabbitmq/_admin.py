"""Administration: entities are queues and exchanges of the broker, managed over AMQP and, where it can't, over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiormq.exceptions import ConnectionInternalError
from pamqp.base import Frame

from pairmq.model import Delivery, Entity, EntityKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, ConfirmRisk, QueueCounts, QueuePositions, QueueProperties, Scope
from pairmq_rabbitmq import _errors, _names
from pairmq_rabbitmq._contents import FEW, MOST, Positions, glance, peek, peek_in_turn
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import (
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    count_in,
)
from pairmq_rabbitmq._inspection import LIKELY, Found, Probe, count_certainly, interrogate, is_for_one_consumer
from pairmq_rabbitmq._management import Management, not_configured
from pairmq_rabbitmq._properties import (
    QUEUE_TYPE,
    arguments_of,
    dead_letter_arguments,
    is_single,
    properties_of,
    queue_type_for,
)
from pairmq_rabbitmq._receiving import held_by_this_process
from pairmq_rabbitmq._url import QueueType

_ASK = "add ?management=http://host:15672 to the URL to have it checked; or check with rabbitmqctl list_queues"
_POLICIES_UNSEEN = ConfirmRisk(
    "whether a policy makes it drop or dead-letter messages that it has confirmed (overflow drop-head, message-ttl, "
    "delivery-limit, expires) was not checked: AMQP does not show policies",
    f"{_ASK} name policy operator_policy_definition effective_policy_definition",
)
_UNREAD = ConfirmRisk(
    "whether it keeps what it has confirmed is unknown: the broker does not show its settings and policies over AMQP",
    f"{_ASK} name type durable arguments effective_policy_definition",
)


class RabbitAdmin(Admin):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._probe = Probe(context, Scope(context.scope, "probe"))
        self._own: set[str] = set()  # backlog queues, where a message may be fetched and released without harm
        self._positions = Positions(context)
        where = context.url.management
        self._management = None if where is None else Management(context.url, where)

    async def check(self) -> None:
        """Query an exchange that every virtual host has: it needs no permission and changes nothing."""
        await self._context.find_exchange("amq.direct", "check the connection")

    async def exists(self, entity: Entity) -> bool:
        """Check whether there is such a queue or, for a topic, an exchange of any type."""
        doing = f"look for {entity}"
        _names.check(entity)
        return await self._found(_look_for(entity), doing) is not None

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue with its dead-letter queue, or a topic's exchange; all durable.

        Queues are of the type given by the URL's ``queue_type``. Without it, a queue with ``properties``, such as a
        backlog queue, is a quorum queue, and one without is classic, which is the broker's own default; before
        RabbitMQ 3.10 all are classic. A quorum queue supports all settings but ``lock_duration``, which is the
        URL's for every queue, and ``batched_operations``; a classic one does not bound deliveries either. A full queue
        rejects new messages. With ``dead_letter_on_expiration`` off there is no dead-letter exchange: the broker drops
        expired messages, and those that were delivered too often. With ``single_consumer`` it is a quorum queue with a
        single active consumer. For a topic the settings have no effect: its subscriptions have defaults.

        Of two processes that create the same queue at the same moment, both may get True.
        """
        doing = f"create {entity}"
        _names.check(entity)
        if entity.kind is EntityKind.TOPIC:
            if await self._found(_look_for(entity), doing) is not None:
                return False
            return await self._declare(
                ExchangeDeclare(exchange=entity.path, exchange_type="topic", durable=True), doing
            )
        if properties is not None and properties.requires_session:
            text = "requires_session: a RabbitMQ queue can't be read one session at a time"
            raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        if properties is not None and not _names.is_record(entity):
            self._own.add(entity.path)
        return await self._create_queue(entity.path, properties, doing)

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Create a subscription: a queue that is bound to the topic's exchange for every routing key."""
        source = Source(topic, name)
        doing = f"create subscription {source}"
        queue = _names.queue_of(source)
        await self._context.find_exchange(topic.path, doing)
        made = await self._create_queue(queue, None, doing)
        # Also when the queue existed: it may be left over from a deleted topic of this name.
        await self._context.ask(doing, QueueBind(queue=queue, exchange=topic.path, routing_key="#"))
        return made

    async def properties(self, entity: Entity) -> QueueProperties:
        """Read a queue's settings: from the management plugin if the URL names it, else by probing each argument.

        AMQP has no method to read a queue's arguments; see `interrogate`. That needs the permission to configure the
        queue, does not see policies, and names as ``unread`` what it can't find out: with a name of more than some 100
        bytes the broker's answers are cut off before the value. ``lock_duration`` is the URL's.

        A topic has no settings: its exchange is checked for existence, and the broker's defaults are returned.
        """
        doing = f"read the settings of {entity}"
        _names.check(entity)
        lock = self._context.url.lock_duration
        if entity.kind is EntityKind.TOPIC:
            await self._context.find_exchange(entity.path, doing)
            return properties_of({}, lock)
        queue = entity.path
        await self._context.count(queue, doing)
        version = await self._context.server_version(doing)
        found = await self._settings(queue, doing)
        if found.complete:
            self._context.one_consumer[queue] = is_single(found.arguments)
        else:
            await self._context.count(queue, doing)  # was it deleted in the meantime?
        known = None if found.complete else found.known
        return properties_of(found.arguments, lock, auto_delete=found.auto_delete, server_version=version, known=known)

    async def counts(self, source: Source) -> QueueCounts:
        """Count ready messages, and those locked by this process: RabbitMQ does not report other consumers' locks.

        A count of 0 is certain for a queue that this admin was asked to create with settings, as a pair does with
        its backlog queues; `count_certainly` says how. For other queues and a pair's record, from which nothing is
        fetched, RabbitMQ reports too few messages for a moment after it was killed and restarted, and 0 while a queue
        has no leader.

        Scheduled messages are in queues that all entities share, and are not counted. Markers published by ended
        processes count as messages until a consumer reads the queue.
        """
        doing = f"count {source}"
        queue = _names.queue_of(source)
        active = await self._count(queue, source, doing)
        locked = held_by_this_process(self._context.url.endpoint.identity, queue)
        if source.dead_letter or _names.is_record(source.entity):  # of a record nothing is dead-lettered
            return QueueCounts(active=active, locked=locked)
        markers = self._positions.unanswered(queue)
        if markers and not (await self._context.count(queue, doing))[1]:
            active = max(0, active - markers)  # no consumer has them, so they count as ready messages
        dead = await self._found(count_in(_names.dead_letter_of(queue)), doing)
        return QueueCounts(active=active, locked=locked, dead_letter=(dead and dead.message_count) or 0)

    async def positions(self, entity: Entity) -> QueuePositions:
        """Find how far a queue has been settled, by markers that travel through it: see `_contents`.

        The result of an earlier call is returned until a later marker is answered. A consumer that reads the queue
        through this transport answers them; without such a consumer, the queue is read for a moment.
        """
        doing = f"look how far {entity} is settled"
        _names.check(entity)
        return await self._positions.of(_names.queue_of(Source(entity)), doing)

    async def delete(self, entity: Entity) -> bool:
        """Delete a queue with its dead-letter queue, or a topic.

        Only the management plugin can list a topic's subscriptions: they are deleted with it if the URL names the
        plugin. Otherwise their queues stay, with their messages, and can be read until an operator deletes them.
        """
        doing = f"delete {entity}"
        _names.check(entity)
        if not await self.exists(entity):
            return False
        if entity.kind is EntityKind.TOPIC:
            await self._context.ask(doing, ExchangeDelete(exchange=entity.path))
            if self._management is not None:
                subscriptions = _names.queue_of(Source(entity, "x"))[:-1]
                await self._delete_queues(await self._management.queues(subscriptions, doing), doing)
            return True
        await self._delete_queues((entity.path, _names.dead_letter_of(entity.path)), doing)
        self._context.full.pop(entity.path, None)
        self._own.discard(entity.path)
        self._context.one_consumer.pop(entity.path, None)
        self._positions.forget(entity.path)
        return True

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        """List queues and exchanges, which needs the management plugin; reason *not-supported* when the URL does not
        name it."""
        doing = "list the entities"
        if self._management is None:
            raise not_configured(doing)
        queues = _entities(await self._management.queues(prefix, doing), EntityKind.QUEUE)
        topics = _entities(await self._management.exchanges(prefix, doing), EntityKind.TOPIC)
        return sorted((*queues, *topics), key=lambda entity: (entity.path, entity.kind))

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages by fetching and releasing them: see `_contents.peek`.

        A queue for one consumer at a time can't be peeked while a consumer reads it, and shows 250 messages at most. A
        few messages of a pair's record are shown in one round trip, as far as no other process looks at them in that
        moment.
        """
        doing = f"peek into {source}"
        queue = _names.queue_of(source)
        if _names.is_record(source.entity) and not source.dead_letter:
            if max_messages <= FEW:
                return await glance(self._context, queue, max(max_messages, 1), doing)
            waiting, consumers = await self._context.count(queue, doing)
            if not waiting and consumers:
                waiting = MOST  # others that look at it hold all of it, each in its turn
        else:
            waiting = await self._count(queue, source, doing)
        if not waiting:
            return []
        if not source.dead_letter and await is_for_one_consumer(self._context, queue, doing):
            return await peek_in_turn(self._context, queue, max(max_messages, 1), doing)
        return await peek(self._context, queue, waiting, max(max_messages, 1), doing)

    async def purge(self, source: Source) -> int:
        """Delete the ready messages of a queue; messages that a consumer holds locked stay."""
        doing = f"purge {source}"
        queue = _names.queue_of(source)
        if not await self._count(queue, source, doing):
            return 0
        purged = await self._context.ask(doing, QueuePurge(queue=queue))
        self._positions.forget(queue)
        return purged.message_count or 0

    async def probe(self, entity: Entity) -> None:
        """Check that the entity exists, and publish to a queue that no consumer reads; see `Probe` for the proof."""
        await self._probe.probe(entity)

    async def confirm_risks(self, queue: Entity | None = None) -> Sequence[ConfirmRisk]:
        """Check the type of a queue, and whether it is durable; the broker as a whole has no setting that matters.

        The effect of policies on a queue is in its `properties`; without the management plugin it can't be seen, which
        is a risk of its own.
        """
        if queue is None or queue.kind is EntityKind.TOPIC:
            return ()
        doing = f"read the settings of {queue}"
        await self._context.count(queue.path, doing)
        found = await self._settings(queue.path, doing, until=frozenset((QUEUE_TYPE,)))
        if not found.complete and QUEUE_TYPE not in found.arguments:
            return (_UNREAD,)
        risks = _queue_risks(found.arguments, durable=found.durable)
        return risks if self._management is not None else (*risks, _POLICIES_UNSEEN)

    def is_system_entity(self, entity: Entity) -> bool:
        """Names that begin with ``amq.`` or ``pairmq.``, and those with a segment that begins with ``$``."""
        return _names.is_system(entity)

    async def _settings(self, queue: str, doing: str, until: frozenset[str] = frozenset()) -> Found:
        if self._management is not None:
            return await self._management.queue(queue, doing)
        guess = arguments_of(LIKELY, await self._queue_type("quorum", doing), _names.dead_letter_of(queue), doing)
        return await interrogate(self._context, queue, guess, doing, until=until)

    async def _found(self, method: Frame, doing: str) -> Any:
        """The broker's reply about a queue or exchange; None when it does not exist."""
        try:
            return await self._context.ask(doing, method)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return None
            raise

    async def _is_there(self, queue: str, doing: str) -> bool | None:
        """Whether a queue exists; None if RabbitMQ can't say, where declaring it will show the difference."""
        try:
            return await self._found(count_in(queue), doing) is not None
        except TransportError as error:
            if _is_cut_off(error):
                return None
            raise

    async def _count(self, queue: str, source: Source, doing: str) -> int:
        """How many messages of a source's queue are ready; 0 for a dead-letter queue that does not exist yet."""
        if not source.dead_letter:
            if queue in self._own:
                return await count_certainly(self._context, queue, doing)
            return (await self._context.count(queue, doing))[0]
        found = await self._found(count_in(queue), doing)
        if found is None:
            await self._context.count(_names.queue_of(Source(source.entity, source.subscription)), doing)
            return 0
        return found.message_count or 0

    async def _create_queue(self, name: str, properties: QueueProperties | None, doing: str) -> bool:
        if await self._is_there(name, doing):
            return False
        queue_type = await self._queue_type("classic" if properties is None else "quorum", doing)
        dead_letter = _names.dead_letter_of(name)
        arguments = arguments_of(properties or QueueProperties(), queue_type, dead_letter, doing)
        # The dead-letter queue first, so that no message is dead-lettered to a queue that does not exist.
        was_there = await self._is_there(dead_letter, doing) is not False
        aside = QueueDeclare(queue=dead_letter, durable=True, arguments=dead_letter_arguments(queue_type))
        await self._declare(aside, doing)
        try:
            return await self._declare(QueueDeclare(queue=name, durable=True, arguments=arguments), doing)
        except TransportError as error:
            # As to a user who may not read it. What others may have made and filled stays.
            if error.reason is FailureReason.UNAUTHORIZED and not was_there:
                with contextlib.suppress(TransportError):
                    if await self._found(count_in(name), doing) is None:
                        await self._delete_queues((dead_letter,), doing)
            raise

    async def _declare(self, method: Frame, doing: str) -> bool:
        """Return whether it was created: another client may have created it first, and theirs is left unchanged."""
        try:
            await self._context.ask(doing, method)
        except TransportError as error:
            if error.reason is FailureReason.ALREADY_EXISTS or _is_cut_off(error):
                return False
            raise
        return True

    async def _queue_type(self, default: QueueType, doing: str) -> QueueType:
        return queue_type_for(self._context.url.queue_type, await self._context.server_version(doing), default)

    async def _delete_queues(self, queues: Iterable[str], doing: str) -> None:
        for queue in queues:
            try:
                await self._context.ask(doing, QueueDelete(queue=queue))
            except TransportError as error:
                if error.reason is not FailureReason.NOT_FOUND:
                    raise


def _look_for(entity: Entity) -> Frame:
    topic = entity.kind is EntityKind.TOPIC
    return ExchangeDeclare(exchange=entity.path, passive=True) if topic else count_in(entity.path)


def _is_cut_off(error: TransportError) -> bool:
    """Whether the broker refused a request without room for the reason: see `Context.consuming_of`."""
    return isinstance(error.__cause__, ConnectionInternalError)


def _entities(names: Iterable[str], kind: EntityKind) -> Iterable[Entity]:
    for name in names:
        try:
            entity = Entity(name, kind)
        except ValueError:
            continue  # another program's, which is not a valid entity name
        if not _names.is_system(entity):
            yield entity


def _queue_risks(arguments: Mapping[str, Any], *, durable: bool) -> tuple[ConfirmRisk, ...]:
    advice = "delete it when it is empty, and let PairMQ create it again, as a quorum queue"
    if not durable:
        return (ConfirmRisk("it is not durable: a server restart deletes it with all its messages", advice),)
    if arguments.get(QUEUE_TYPE, "classic") == "classic":
        text = "it is a classic queue: its messages are on one server only, and lost with its disk"
        return (ConfirmRisk(text, advice),)
    return ()
