"""What AMQP alone can find out about a queue: arguments, whether it is empty or takes writes, why it rejected one.

AMQP has no way to read the arguments. A queue that is declared again with other arguments than it has is left
unchanged, and the broker's refusal names the first argument that differs and the queue's value of it. So the
declaration is corrected by that and repeated, until the broker accepts it: then it holds all of the queue's arguments.

A full queue that rejects publishes answers with a nack, and so does one whose process failed: the first has certainly
not stored the message, the second may have. Which queues reject is found out from their arguments.
"""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiormq.channel import Channel
from aiormq.exceptions import ChannelPreconditionFailed, ConnectionInternalError
from pamqp.commands import Basic

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq.transport import QueueProperties, Scope
from pairmq_rabbitmq import _errors, _names
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import QueueDeclare, close_channel, get
from pairmq_rabbitmq._link import Link
from pairmq_rabbitmq._properties import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTER_KEY,
    DEAD_LETTER_STRATEGY,
    DEAD_LETTERING,
    DELIVERY_LIMIT,
    EXPIRES,
    MESSAGE_TTL,
    NUMBERS,
    OVERFLOW,
    QUEUE_TYPE,
    SINGLE_CONSUMER,
    arguments_of,
    is_single,
)
from pairmq_rabbitmq._publish import Answer, Lost, Nacked, Parcel, Returned, publish_method
from pairmq_rabbitmq._publisher import Publisher

LIKELY: Final = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1)
"""What the backlog queues of a pair are (SPEC 5.2), which are asked about most."""

_MOST_ROUNDS = 20

# An argument that is not compared with an existing queue's, and with whose value no queue can be created: if the
# queue is deleted while it is probed, no declaration creates another one.
_GUARD: Final = "x-max-age"  # of streams; RabbitMQ 4 compares `x-queue-leader-locator`, which 3.10 does not
_GUARD_VALUE: Final = "1D"

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue '.*' in vhost '.*?': received .*? but current is "
    r"(?:(?P<none>none)|the value '(?P<typed>.*)' of type '(?P<type>[a-z]+)'|'(?P<plain>.*)')\s*$",
    re.DOTALL,
)
# AMQP's replies have at most 255 bytes: with a long name in it, only the beginning of the sentence arrives.
_NAME = re.compile(r"inequivalent arg '([^']+)'")
_CUT_OFF: Final = object()
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_FLAGS = ("durable", "auto_delete", "exclusive")

# The reply to the first shows that the queue has a leader which has applied its log. It then detects which consumers
# are gone, and requeues what they held before it handles the second.
_QUESTIONS = 2

_TRUSTED = 60.0  # s


PING_QUEUE: Final = _names.OWN_PREFIX + "ping"
"""The target of pings; no consumer reads it, and it holds the last one."""
_PING_ARGUMENTS: dict[str, Any] = {
    # Set explicitly, so that no default or policy changes it.
    "x-queue-type": "classic",
    "x-max-length": 1,
    "x-overflow": "drop-head",
    "x-expires": 24 * 60 * 60 * 1000,
}


@dataclass(slots=True)
class Found:
    """What is known about a queue; incomplete if the broker refused, or its text could not be parsed.

    ``known``: names of arguments that are known if it is incomplete, those that the queue does not have included.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    auto_delete: bool = False
    durable: bool = True
    complete: bool = False
    known: frozenset[str] = frozenset()


async def interrogate(
    context: Context,
    queue: str,
    guess: dict[str, Any],
    doing: str,
    *,
    until: frozenset[str] = frozenset(),
    link: Link | None = None,
) -> Found:
    """Find out the arguments of a queue that exists, over the control link unless another is given, or ``until`` some.

    It creates nothing, even when the queue is deleted meanwhile: see ``_GUARD``. A broker that does not know the guard
    could only create, in the moment after it named the queue, a queue like the one that existed. Arguments of the guess
    that could not be confirmed are left out.
    """
    asked = dict(guess)
    flags = {"durable": True, "auto_delete": False}
    read: dict[str, Any] = {}
    unreadable: set[str] = set()
    guard: dict[str, Any] = {_GUARD: _GUARD_VALUE}
    for _ in range(_MOST_ROUNDS):
        try:
            await context.ask(doing, QueueDeclare(queue=queue, arguments={**asked, **guard}, **flags), link)
        except TransportError as error:
            if isinstance(error.__cause__, ConnectionInternalError):
                break  # it differs, and RabbitMQ 4 can't say how: see `Context.ask`
            words = str(error.__cause__) if isinstance(error.__cause__, ChannelPreconditionFailed) else ""
            difference = _difference(words)
            if difference is None:
                if error.kind is not FailureKind.REFUSED:
                    raise
                break
            name, value = difference
            if name in _FLAGS:
                if name not in flags or flags[name] == (value == "true"):
                    break
                flags[name] = value == "true"
            elif name == _GUARD:
                guard = {}  # a stream, which has one
            elif name in read or (value is _CUT_OFF and name not in asked):
                unreadable.add(name)
                break  # the queue has a value for it that can't be read
            else:
                read[name] = None if value is _CUT_OFF else value
                asked.pop(name, None)
                if read[name] is not None:
                    asked[name] = value
                if name in until:
                    return Found(_values(read), flags["auto_delete"], flags["durable"], complete=True)
        else:
            return Found(_compared(asked), flags["auto_delete"], flags["durable"], complete=True)
    known = frozenset(read) - unreadable
    return Found(_values(read), flags["auto_delete"], flags["durable"], known=known)


def _values(read: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in read.items() if value is not None}


def _compared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the broker accepted unchecked because queues of this type have no such argument."""
    match arguments.get(QUEUE_TYPE, "classic"):
        case "quorum":
            return arguments
        case "classic":
            ignored = frozenset((DELIVERY_LIMIT, DEAD_LETTER_STRATEGY))
        case _:
            ignored = frozenset((DELIVERY_LIMIT, *DEAD_LETTERING, OVERFLOW, MESSAGE_TTL, EXPIRES))
    return {name: value for name, value in arguments.items() if name not in ignored}


def _difference(words: str) -> tuple[str, Any] | None:
    """Parse the broker's text: the argument's name, and the queue's value of it; None for having none."""
    found = _INEQUIVALENT.search(words)
    if found is None:
        beginning = _NAME.search(words)
        return None if beginning is None else (beginning[1], _CUT_OFF)
    name = found["name"]
    if found["none"]:
        return name, None
    text = found["plain"] if found["typed"] is None else found["typed"]
    kind = found["type"]
    if kind == "bool" or (kind is None and text in ("true", "false") and name not in _FLAGS):
        return name, text == "true"
    number = kind not in ("longstr", "binary") if kind else name in NUMBERS or name.startswith("x-max-")
    if number and _INTEGER.fullmatch(text):
        return name, int(text)
    return name, text


async def is_for_one_consumer(context: Context, queue: str, doing: str, link: Link | None = None) -> bool:
    """Return whether a queue is for one consumer at a time; asks the broker once, with one request for most queues.

    A user who may not configure the queue gets no answer, and reads it as one for several: a queue that keeps order
    must only be read by users who may.
    """
    known = context.one_consumer.get(queue)
    if known is not None:
        return known
    differs = frozenset((QUEUE_TYPE, SINGLE_CONSUMER))
    # Each argument that was guessed wrong costs two round trips. The default exchange shows a queue that PairMQ made,
    # whose others are known. The last guess is a backlog queue's: with a long name the reply has room for no more.
    bare = {QUEUE_TYPE: "quorum", SINGLE_CONSUMER: True}
    ordered = replace(LIKELY, single_consumer=True)
    ours = (replace(ordered, max_size_megabytes=None), ordered)
    guesses = [bare, *(arguments_of(each, "quorum", _names.dead_letter_of(queue), doing) for each in ours)]
    until = differs | {DEAD_LETTER_EXCHANGE}
    while guesses:
        found = await interrogate(context, queue, guesses.pop(0), doing, until=until, link=link)
        if found.complete and (until is differs or DEAD_LETTER_EXCHANGE not in found.arguments):
            context.one_consumer[queue] = is_single(found.arguments)
            return context.one_consumer[queue]
        if until is not differs:
            until = differs
            if found.arguments.get(DEAD_LETTER_EXCHANGE) != "":
                guesses[0] = bare
    return False


async def count_certainly(context: Context, queue: str, doing: str) -> int:
    """Count the ready messages of a queue, where 0 means that it is certainly empty.

    A passive declare, which returns the number, is answered at once with what the queue's process knows. For a quorum
    queue that may be 0 with any number of messages in it: while no leader is elected, when the leader does not answer
    within 0.25 s, and after a boot until what dead consumers held is requeued (seen for 0.2 to 0.9 s with RabbitMQ
    3.10). `basic.get` is a command, which the leader applies in turn with all others. So a 0 is verified
    with that. A message that it fetches is requeued in its place, counted as delivered once more, also when the call is
    cancelled.

    Nothing can be fetched this way from a queue with a single active consumer, or by a user who may not read it. The
    leader refuses the former in turn as well, so the number read afterwards is right; for the latter the first number
    is returned. A queue without leader never answers: set a time limit.
    """
    waiting, _ = await context.count(queue, doing)
    refused = False
    for _ in range(_QUESTIONS):
        if waiting:
            break
        try:
            waiting = await context.ask_on(doing, lambda channel: fetch_one(channel, queue), queue)
        except TransportError as error:
            if error.reason not in (FailureReason.DISABLED, FailureReason.UNAUTHORIZED):
                raise
            refused = True
    if refused:
        waiting, _ = await context.count(queue, doing)
    return waiting


async def fetch_one(channel: Channel, queue: str) -> int:
    """Have a queue's leader fetch a message, and requeue it in its place, which closes the channel; the number there
    was."""
    fetched = (await get(channel, queue)).delivery
    if not isinstance(fetched, Basic.GetOk):
        return 0
    # A nack would put it at the end of a quorum queue without delivery limit.
    await close_channel(channel)
    return 1 + (fetched.message_count or 0)


async def why_nacked(context: Context, entity: Entity, doing: str) -> TransportError:
    """Find why the broker did not accept a message; in doubt unless the queue is known to reject messages when full.

    The number of messages in the queue is kept for the probe. Of a topic's queues others may have accepted the message.
    """
    text = f"{doing}: the broker rejected it"
    unavailable, quota = FailureKind.UNAVAILABLE, FailureReason.QUOTA
    if entity.kind is EntityKind.TOPIC:
        return TransportError(
            f"{text}: a queue that is bound to the topic is full", unavailable, quota, maybe_applied=True
        )
    try:
        waiting, _ = await context.count(entity.path, doing)
        rejects = await _rejects(context, entity.path, doing)
    except TransportError as error:
        return TransportError(f"{text}, and then {error}", unavailable, maybe_applied=True)
    certain = rejects and len(context.url.nodes) == 1
    # For a queue that has failed the number says nothing about room: the probe must not wait forever.
    until = math.inf if certain else asyncio.get_running_loop().time() + _TRUSTED
    before, _ = context.full.get(entity.path, (0, 0.0))
    context.full[entity.path] = max(waiting, before), until
    if certain:
        return TransportError(f"{text}: the queue is full (overflow is reject-publish)", unavailable, quota)
    if rejects:
        reason = "the queue is full (overflow is reject-publish), or has no leader"
        return TransportError(f"{text}: {reason}", unavailable, quota)
    return TransportError(
        f"{text}: the queue is full, by a policy, or has failed", unavailable, quota, maybe_applied=True
    )


async def _rejects(context: Context, queue: str, doing: str) -> bool:
    """Whether a queue is known to reject messages when full; a policy for that can't be seen."""
    now = asyncio.get_running_loop().time()
    rejects, until = context.rejecting.get(queue, (False, 0.0))
    if now >= until:
        try:
            # With the dead-letter queue of those that PairMQ creates: the broker's reply would be cut off in its name.
            dead_letter = {DEAD_LETTER_EXCHANGE: "", DEAD_LETTER_KEY: _names.dead_letter_of(queue)}
            found = await interrogate(context, queue, {OVERFLOW: "reject-publish", **dead_letter}, doing)
            rejects = found.arguments.get(OVERFLOW) == "reject-publish"
        except TransportError as error:
            if error.kind is not FailureKind.REFUSED:  # this user may not ask
                raise
            rejects = False
        context.rejecting[queue] = (rejects, now + _TRUSTED)
    return rejects


class Probe:
    """Pings entities of one transport.

    What a successful ping proves, at this moment:

    - the broker is reachable, accepts this user, and reads what publishers write: no memory or disk alarm, no flow
      control that lasts longer than the ping's time limit;
    - the entity exists;
    - publishing works to the end, on the connection that sends use: the broker confirmed a persistent message, or
      returned it because no queue takes it;
    - a queue that rejected a message for lack of room, as far as this process knows, holds fewer messages now.

    What it can't prove: that the next, larger message fits; that the nodes and disks which hold the entity's own
    messages work as well as those of the ping queue; that a quorum queue has its majority, as RabbitMQ counts messages
    without one, and only to fetch a message would show it (ADR 38); that no policy changes in between; that another
    process did not fill the queue.
    For a topic it proves that the exchange exists and its node accepts writes: a queue that is bound to it may be full
    or missing.

    Pings go to `PING_QUEUE`, which is created when missing. A user who may not create it, or for whom it is unusable,
    pings a routing key that no queue has: the broker's return is the proof.
    """

    def __init__(self, context: Context, scope: Scope) -> None:
        self._context = context
        self._scope = scope
        self._publisher = Publisher(context.publishing, "ping")

    async def probe(self, entity: Entity) -> None:
        doing = f"probe {entity}"
        _names.check(entity)
        if entity.kind is EntityKind.TOPIC:
            await self._context.find_exchange(entity.path, doing)
        else:
            waiting, _ = await self._context.count(entity.path, doing)
            self._check_room(entity.path, waiting, doing)
        try:
            await self._ping(doing)
        except TransportError as error:
            # A topic's user may write to its exchange only; a refusal shows that the broker read the publish.
            if entity.kind is not EntityKind.TOPIC or error.reason is not FailureReason.UNAUTHORIZED:
                raise

    def _check_room(self, queue: str, waiting: int, doing: str) -> None:
        """Check whether messages have been removed from a queue since it was full."""
        full, until = self._context.full.get(queue, (0, 0.0))
        if waiting and full and waiting >= full and asyncio.get_running_loop().time() < until:
            self._context.full[queue] = waiting, until
            text = f"{doing}: the queue is full: it rejected a message, and still holds {waiting}"
            raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.QUOTA)
        self._context.full.pop(queue, None)

    async def _ping(self, doing: str) -> None:
        """Publish twice: during an alarm the broker confirms one more message before it stops reading a connection."""
        for _ in range(2):
            await self._ping_once(doing)

    async def _ping_once(self, doing: str) -> None:
        answer = await self._publish(PING_QUEUE)
        if isinstance(answer, Returned) and await self._make(doing):
            answer = await self._publish(PING_QUEUE)
        if isinstance(answer, Returned | Nacked):
            # It can't be created, its node is down, or a policy makes it reject: the broker's return is as good.
            answer = await self._publish(f"{PING_QUEUE}.{uuid.uuid4().hex}")
        match answer:
            case None | Returned():
                return
            case TransportError():
                raise answer
            case Lost():
                raise _errors.failure(answer.cause, doing)
        raise TransportError(f"{doing}: the broker rejected the ping", FailureKind.UNAVAILABLE)

    async def _publish(self, routing_key: str) -> Answer:
        properties = Basic.Properties(message_id=uuid.uuid4().hex, delivery_mode=2)
        parcel = Parcel.of(publish_method("", routing_key), properties, b"")
        [answer] = await self._publisher.publish([parcel], self._scope)
        return answer

    async def _make(self, doing: str) -> bool:
        """Create the ping queue; returns whether it can be used."""
        try:
            await self._context.ask(doing, QueueDeclare(queue=PING_QUEUE, durable=True, arguments=_PING_ARGUMENTS))
        except TransportError as error:
            # Refused, or its node is down (404): neither says anything about the entity.
            if error.kind is not FailureKind.REFUSED and error.reason is not FailureReason.OTHER:
                raise
            return error.reason is FailureReason.ALREADY_EXISTS
        return True
