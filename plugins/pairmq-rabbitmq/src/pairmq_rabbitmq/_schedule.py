"""Scheduled messages, without a plugin of the broker, and with a fixed number of queues.

A delay is written in binary. For each binary digit there is a level: an exchange, and a queue whose messages expire
after that digit's share of the delay. The routing key holds the digits, the highest first, and then a word that
represents the target. The exchange of a level routes a message with a 1 at its place to its queue, from where it is
dead-lettered to the exchange of the level below when the time is up; one with a 0 it passes down at once. The last
exchange, ``pairmq.delay.deliver``, has a binding for each target.

Within a level's queue all messages wait equally long, so that none delays another. Quorum queues of RabbitMQ 4.0 to
4.2 have two lanes, for priorities from 5 on and below, and check for expired messages only at the head of both: there
the priority is moved to a header. Delays are rounded up to the unit of 64 ms: no message is early, and one may be up to
some 0.1 s late.

After a crash: quorum queues (RabbitMQ 3.10 or newer, unless the URL says ``queue_type=classic``) remove a message only
when the next queue has confirmed it. With classic queues, which have names of their own
(``pairmq.delay.classic.…``), messages that moved from one to the next in the last moments before the crash may be lost;
a waiting one is as safe as in any durable queue. After the crash messages are late by the duration of the outage, and a
few by some three minutes more: during the start, a queue may find its target missing, and tries again after that time.

One thing was measured with RabbitMQ 3.10 that this can't fix: when the node was killed within some two seconds after
the delay queues were created, messages were missing in some runs, and held back in others. It did not happen with
queues that were five seconds old. The cause was not found. It concerns the first messages that need a level.

What happens to messages that can't be delivered when they are due:

- to a queue that was deleted meanwhile: they go to the queue ``pairmq.delay.undeliverable``, and stay for two weeks;
- to a topic without a subscription: no consumer gets them, like any message to a topic without subscriptions;
- to a full queue: quorum queues keep them and try again after some minutes. More than 32 such messages at a time delay
  others whose delay ends in the same level. Classic queues drop them.

A topic's exchange sees the digits as routing key and not the subject: subscriptions get the messages, bindings for
certain subjects do not.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pamqp.base import Frame

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq_rabbitmq import _errors, _names
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import ExchangeBind, ExchangeDeclare, QueueBind, QueueDeclare
from pairmq_rabbitmq._link import Session
from pairmq_rabbitmq._properties import dead_letter_arguments, queue_type_for
from pairmq_rabbitmq._publish import publish_method
from pairmq_rabbitmq._url import QueueType

UNIT: Final = 64
"""Milliseconds of the lowest level; a larger value makes messages later, a smaller one makes the longest delay shorter.

It and the number of levels are part of what the names mean: other values need other names.
"""
LEVELS: Final = 26
MAX_DELAY: Final = (2**LEVELS - 2) * UNIT / 1000
"""Longest delay in seconds, 49.7 days."""

_KEPT = 14 * 24 * 60 * 60 * 1000  # ms
# What was created is assumed to exist for a while, since each check costs a round trip; then it is checked again, as an
# operator may have deleted it. A target may be deleted and created again, without its binding, at any moment.
_LEVELS_TRUSTED = 60.0
_LANES_SINCE, _LANES_UNTIL = (4, 0), (4, 3)
_TARGET_TRUSTED = 0.1
_MOST_KNOWN = 10_000


class DelayNames:
    """The delay queues and exchanges, separate for each queue type: processes may use different ones."""

    def __init__(self, queue_type: QueueType) -> None:
        self.queue_type = queue_type
        self._prefix = _names.OWN_PREFIX + ("delay." if queue_type == "quorum" else "delay.classic.")
        self.deliver = self._prefix + "deliver"
        """The exchange that has a binding for each target."""
        self.undeliverable = self._prefix + "undeliverable"
        """The exchange and queue for messages without a target."""
        self.discard = self._prefix + "discard"
        """The queue that is always empty."""

    def level(self, level: int) -> str:
        return f"{self._prefix}{level}"

    def below(self, level: int) -> str:
        return self.level(level - 1) if level else self.deliver

    def make_end(self) -> Iterator[Frame]:
        """The last exchange, and the queue for messages that it has no target for."""
        arguments = {**dead_letter_arguments(self.queue_type), "x-message-ttl": _KEPT}
        yield QueueDeclare(queue=self.undeliverable, durable=True, arguments=arguments)
        yield ExchangeDeclare(exchange=self.undeliverable, exchange_type="fanout", durable=True)
        yield QueueBind(queue=self.undeliverable, exchange=self.undeliverable)
        # A quorum queue that can't pass on a message retries forever, and delays others: each needs a destination.
        yield _topic(self.deliver, {"alternate-exchange": self.undeliverable})

    def make_exchange(self, level: int) -> Iterator[Frame]:
        name = self.level(level)
        yield _topic(name)
        yield ExchangeBind(destination=self.below(level), source=name, routing_key=_binding_key(level, "0"))

    def make_queue(self, level: int) -> Iterator[Frame]:
        name = self.level(level)
        arguments = {
            **dead_letter_arguments(self.queue_type),
            "x-message-ttl": UNIT << level,
            "x-dead-letter-exchange": self.below(level),
        }
        if self.queue_type == "quorum":
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        yield QueueDeclare(queue=name, durable=True, arguments=arguments)
        yield QueueBind(queue=name, exchange=name, routing_key=_binding_key(level, "1"))

    def make_discard(self) -> Iterator[Frame]:
        # A topic without a subscription accepts no message: those of topics go to a queue that is always empty, too.
        arguments: dict[str, Any] = {"x-queue-type": "classic", "x-max-length": 0, "x-overflow": "drop-head"}
        yield QueueDeclare(queue=self.discard, durable=True, arguments=arguments)

    def bind_target(self, entity: Entity, target: str) -> Iterator[Frame]:
        key = f"#.{target}"
        if entity.kind is EntityKind.QUEUE:
            yield QueueBind(queue=entity.path, exchange=self.deliver, routing_key=key)
        else:
            yield ExchangeBind(destination=entity.path, source=self.deliver, routing_key=key)
            yield QueueBind(queue=self.discard, exchange=self.deliver, routing_key=key)


class Schedule:
    """A transport's delay queues; they count for no entity, and `Admin.purge` does not reach them."""

    def __init__(self, context: Context) -> None:
        self.priority_aside = False
        """Whether scheduled messages must not have a priority property, as far as `route` has seen."""
        self._context = context
        self._turn = asyncio.Lock()
        self._session: Session | None = None
        self._names = DelayNames(context.url.queue_type or "quorum")
        self._known: dict[object, float] = {}  # what was created, until when it is assumed to exist

    async def route(self, entity: Entity, delay: float, doing: str) -> bytes:
        """Create what a message needs to be scheduled in so many seconds, as far as it is missing.

        Returns the payload of the method frame that publishes it to its first level, to be used at once. Reason
        *not-found* without the target. A cancelled call leaves nothing half done that another would consider done.
        """
        units = _units(delay)
        bits = [level for level in range(LEVELS) if units >> level & 1]
        target = _word_for(entity)
        if not self._all_known(bits, entity):
            # The others wait: most of them need the same.
            async with self._turn:
                await self._prepare(bits, entity, target, doing)
        routing_key = ".".join((*f"{units:0{LEVELS}b}", target))
        return publish_method(self._names.level(bits[-1]), routing_key)

    def _all_known(self, bits: list[int], entity: Entity) -> bool:
        if self._session is None or self._context.control.current is not self._session:
            return False
        return self._is_known(entity) and all(self._is_known(("queue", level)) for level in bits)

    def _is_known(self, what: object) -> bool:
        return self._known.get(what, 0.0) > asyncio.get_running_loop().time()

    async def _prepare(self, bits: list[int], entity: Entity, target: str, doing: str) -> None:
        version = await self._context.server_version(doing)
        if self._context.control.current is not self._session:
            self._session = self._context.control.current
            self._known.clear()
            self._names = DelayNames(queue_type_for(self._context.url.queue_type, version, "quorum"))
            self.priority_aside = self._names.queue_type == "quorum" and _LANES_SINCE <= version < _LANES_UNTIL
        names = self._names
        await self._once("end", _LEVELS_TRUSTED, names.make_end(), doing)
        # From the bottom up: what a level's queue passes on always finds the next exchange.
        for level in range(bits[-1] + 1):
            await self._once(("exchange", level), _LEVELS_TRUSTED, names.make_exchange(level), doing)
        for level in bits:
            await self._once(("queue", level), _LEVELS_TRUSTED, names.make_queue(level), doing)
        if entity.kind is EntityKind.TOPIC:
            await self._once("discard", _LEVELS_TRUSTED, names.make_discard(), doing)
        await self._once(entity, _TARGET_TRUSTED, names.bind_target(entity, target), doing)

    async def _once(self, what: object, seconds: float, methods: Iterable[Frame], doing: str) -> None:
        if self._is_known(what):
            return
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        try:
            for method in methods:
                await self._context.ask(doing, method)
        except TransportError as error:
            if error.kind is FailureKind.REFUSED:
                # Also when there is a foreign one: it would not keep the time.
                raise
            # Nothing of the message was written, whatever the result of the request.
            raise TransportError(str(error), error.kind, error.reason) from error
        self._known[what] = asyncio.get_running_loop().time() + seconds


def check_delay(delay: float, doing: str) -> None:
    """Raise `TransportError`, reason *not-supported*, for a delay of more than `MAX_DELAY`, in seconds."""
    if delay > 0 and _units(delay) >= 2**LEVELS:
        text = f"it is scheduled in {delay / 86400:.1f} days: at most {MAX_DELAY / 86400:.1f} are supported"
        raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)


def _units(delay: float) -> int:
    units = max(math.ceil(delay * 1000 / UNIT), 1)
    # A queue counts whole milliseconds and includes a started one, so that each may be one short.
    while units * UNIT - units.bit_count() < delay * 1000:
        units += 1
    return units


def _topic(name: str, arguments: dict[str, Any] | None = None) -> Frame:
    return ExchangeDeclare(exchange=name, exchange_type="topic", durable=True, arguments=arguments)


def _binding_key(level: int, digit: str) -> str:
    """The pattern of routing keys that have this digit at the level's place."""
    return "*." * (LEVELS - 1 - level) + digit + ".#"


def _word_for(entity: Entity) -> str:
    """A word for a target: paths hold dots, and may be longer than a routing key."""
    return hashlib.blake2s(f"{entity.kind}:{entity.path}".encode(), digest_size=16).hexdigest()
