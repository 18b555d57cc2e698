"""What a message looks like in a backlog queue, and back: `divert` and `restore` are exact inverses (SPEC 5.6, 5.7).

A property that would act in the backlog (a time-to-live would run out there, a schedule would hide the message from the
syphon, a session would lock it, a priority would let it overtake others) is cleared and kept as text under an alias
among the application properties. Text is what the header types of every broker can hold.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from pairmq.model import MAX_PRIORITY, Entity, EntityKind, EnvelopeError, Message, PropertyValue

SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_ENQUEUE: Final = "x-ms-scheduledenqueuetimeutc"
PATH: Final = "x-ms-path"
KIND: Final = "x-pairmq-kind"
DIVERTED_AT: Final = "x-pairmq-diverted-at"
SENDER: Final = "x-pairmq-sender"
SEQUENCE: Final = "x-pairmq-sequence"
MAYBE_DUPLICATE: Final = "x-pairmq-maybe-duplicate"
PRIORITY: Final = "x-pairmq-priority"

ALIASES: Final = frozenset(
    (SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE, PATH, KIND, DIVERTED_AT, SENDER, SEQUENCE, MAYBE_DUPLICATE, PRIORITY)
)
"""Every application property that the envelope uses; a message may have none of them of its own (SPEC 5.7)."""

# [0-9]: \d would let the digits of every script through.
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{1,6})?")
_DIGITS = 19  # of a sender's number at most
_ZERO = timedelta(0)
_QUEUE = EntityKind.QUEUE  # to look one up takes a call
_SET_ASIDE = frozenset((SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE, PRIORITY))
_PRIORITIES = {str(priority): priority for priority in range(MAX_PRIORITY + 1)}


class Diversion(NamedTuple):
    """What the envelope adds to a message."""

    entity: Entity
    diverted_at: datetime  # when it was diverted; knows its time zone
    sender_id: str
    sequence: int  # that sender's running number of it
    maybe_duplicate: bool = False  # the primary may hold a copy already


def reserved_properties(message: Message) -> tuple[str, ...]:
    """Name the message's own application properties that the envelope needs; such a message is refused (SPEC 5.7)."""
    properties = message.application_properties
    if not properties or ALIASES.isdisjoint(properties):
        return ()
    return tuple(sorted(ALIASES.intersection(properties)))


def divert(message: Message, diversion: Diversion) -> Message:
    """Give a message the form in which it sits in a backlog queue: session id, time-to-live, schedule and priority are
    cleared and kept under their aliases. Raises `ValueError`: it has an alias as a property of its own."""
    own = message.application_properties
    if own and not ALIASES.isdisjoint(own):
        taken = ", ".join(reserved_properties(message))
        raise ValueError(f"the message has {taken} as application properties, which the envelope needs")
    diverted_at = diversion.diverted_at
    if diverted_at.tzinfo is not UTC:
        diverted_at = diverted_at.astimezone(UTC)
    added: dict[str, PropertyValue] = {
        PATH: diversion.entity.path,
        DIVERTED_AT: diverted_at.isoformat(timespec="microseconds"),
        SENDER: diversion.sender_id,
        SEQUENCE: str(diversion.sequence),
    }
    if diversion.entity.kind is not _QUEUE:
        added[KIND] = diversion.entity.kind.value
    if diversion.maybe_duplicate:
        added[MAYBE_DUPLICATE] = "true"
    plain = len(added)
    if message.session_id is not None:
        added[SESSION_ID] = message.session_id
    if message.time_to_live is not None:
        added[TIME_TO_LIVE] = _seconds_text(message.time_to_live)
    if message.scheduled_enqueue_at is not None:
        added[SCHEDULED_ENQUEUE] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")
    if message.priority is not None:
        added[PRIORITY] = str(message.priority)
    if len(added) == plain:  # of most nothing acts in the backlog
        return message.with_id(message.message_id, {**own, **added})
    return replace(
        message,
        session_id=None,
        time_to_live=None,
        scheduled_enqueue_at=None,
        priority=None,
        application_properties={**own, **added},
    )


def copy_of(envelope: Message, due: datetime | None, *, marked: bool) -> Message:
    """Give a diverted message the form in which it goes to the tail of its queue: to be seen again when it is due, and
    with the mark that the primary may hold it already."""
    if marked:
        envelope = envelope.with_properties({**envelope.application_properties, MAYBE_DUPLICATE: "true"})
    return envelope if due is None else replace(envelope, scheduled_enqueue_at=due)


def restore(message: Message) -> tuple[Message, Diversion]:
    """Undo `divert`: return the original message, equal in every field, and what the envelope had added.

    Nothing in a message from a backlog queue is trusted. An `EnvelopeError` names an alias that is missing or
    malformed, not its value.
    """
    own: dict[str, PropertyValue] = {}
    found: dict[str, str] = {}
    for name, value in message.application_properties.items():
        if name not in ALIASES:
            own[name] = value
        elif isinstance(value, str):
            found[name] = value
        else:
            raise EnvelopeError(f"{name} is a {type(value).__name__}: it must be text")
    get = found.get
    path = get(PATH)
    if path is None:
        raise EnvelopeError(f"{PATH} is missing: PairMQ did not send this message")
    diverted_at = _instant(DIVERTED_AT, get(DIVERTED_AT))
    sender, sequence = get(SENDER), get(SEQUENCE)
    numbered = sequence is not None and sequence.isascii() and sequence.isdigit() and len(sequence) <= _DIGITS
    if diverted_at is None or not sender or sequence is None or not numbered:
        missing = DIVERTED_AT if diverted_at is None else SENDER if not sender else SEQUENCE
        raise EnvelopeError(f"{missing} is missing or malformed")
    duplicate = get(MAYBE_DUPLICATE)
    if duplicate not in (None, "true"):
        raise EnvelopeError(f"{MAYBE_DUPLICATE} is malformed")
    try:
        entity = _entity(path, get(KIND))
    except ValueError as error:
        raise EnvelopeError(f"{PATH} or {KIND} is malformed: together they must name a queue or topic") from error
    # As its constructor does, whose call is a third of its cost.
    envelope = tuple.__new__(Diversion, (entity, diverted_at, sender, int(sequence), duplicate is not None))
    if (
        _SET_ASIDE.isdisjoint(found)
        # As in every message that `divert` made; a broker may have set some.
        and message.session_id is None
        and message.time_to_live is None
        and message.scheduled_enqueue_at is None
        and message.priority is None
    ):
        return message.with_id(message.message_id, own), envelope
    try:
        # Every field by name: `replace` would look all of them up, and every moved message passes here.
        original = Message(
            message.body,
            message.message_id,
            session_id=get(SESSION_ID),
            time_to_live=_seconds(get(TIME_TO_LIVE)),
            scheduled_enqueue_at=_instant(SCHEDULED_ENQUEUE, get(SCHEDULED_ENQUEUE)),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            correlation_id=message.correlation_id,
            subject=message.subject,
            to=message.to,
            reply_to=message.reply_to,
            reply_to_session_id=message.reply_to_session_id,
            partition_key=message.partition_key,
            priority=_priority(get(PRIORITY)),
            application_properties=own,
        )
    except (ValueError, TypeError) as error:
        # Only these three can be the reason: a priority is whole by now, and all else was a message's already.
        names = f"{SESSION_ID}, {TIME_TO_LIVE} or {SCHEDULED_ENQUEUE}"
        raise EnvelopeError(f"{names} holds an invalid value") from error
    return original, envelope


def elapsed_time_to_live(message: Message, diversion: Diversion, now: datetime) -> float | None:
    """Return what is left of a message's time-to-live when its time in the backlog counts (``ttl_policy="elapse"``):
    seconds, 0 or less when it has expired; None for a message without one. That of a scheduled message begins when it
    is due."""
    if message.time_to_live is None:
        return None
    due = message.scheduled_enqueue_at
    begins_at = diversion.diverted_at if due is None else max(due, diversion.diverted_at)
    waited = (now - begins_at).total_seconds()
    return message.time_to_live - max(0.0, waited)


@lru_cache(maxsize=256)
def _entity(path: str, kind: str | None) -> Entity:
    return Entity(path, _QUEUE if kind is None else EntityKind(kind))


def _seconds_text(seconds: float) -> str:
    """Write seconds as a plain decimal, exact to the microsecond."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if not _SECONDS.fullmatch(text):
        raise EnvelopeError(f"{TIME_TO_LIVE} is malformed: it must be seconds as a decimal number")
    return float(text)


def _priority(text: str | None) -> int | None:
    if text is None:
        return None
    if text not in _PRIORITIES:
        raise EnvelopeError(f"{PRIORITY} is malformed: it must be a whole number from 0 to {MAX_PRIORITY}")
    return _PRIORITIES[text]


def _instant(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not UTC and at.utcoffset() != _ZERO:
            raise ValueError("not in UTC")
    except ValueError:
        raise EnvelopeError(f"{name} is malformed: it must be an ISO 8601 instant in UTC") from None
    return at
