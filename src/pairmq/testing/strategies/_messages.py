"""Messages, with every field and every property type that `pairmq.Message` takes.

Hostile ones are what others may put on a backlog queue: envelopes that must be dead-lettered as poison (SPEC 7.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st

from pairmq.core import ALIASES, Diversion, divert
from pairmq.core import envelope as names
from pairmq.model import MAX_ID_LENGTH, MAX_PRIORITY, MAX_TIME_TO_LIVE, Entity, Message, PropertyValue

T = TypeVar("T")

# A lone surrogate is the one kind of character that a message refuses.
_CHARACTERS = st.characters(exclude_categories=["Cs"])
_TEXTS = st.text(_CHARACTERS, max_size=40)

# Any zone's instants of these years are instants of the years 1 to 9999 in UTC too.
_FIRST, _LAST = datetime.fromisoformat("0001-01-03"), datetime.fromisoformat("9999-12-29")
_ZONES = st.builds(timezone, st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)))

# To the microsecond, as a message keeps them, and with short ones first.
_TIMES_TO_LIVE = st.one_of(
    st.integers(1, 86_400).map(float),
    st.integers(1, 10_000_000).map(lambda microseconds: microseconds / 1_000_000),
    st.floats(0.000001, MAX_TIME_TO_LIVE),
)

_TEXT_FIELDS = ("content_type", "content_encoding", "correlation_id", "subject", "to", "reply_to")


def ids() -> st.SearchStrategy[str]:
    """Message and session ids: 1 to 128 characters of any script, control characters among them."""
    return st.text(_CHARACTERS, min_size=1, max_size=MAX_ID_LENGTH)


def instants() -> st.SearchStrategy[datetime]:
    """Datetimes of the years 1 to 9999 that know their time zone; a message brings them to UTC."""
    return st.datetimes(_FIRST, _LAST, timezones=st.just(UTC) | _ZONES)


def property_names() -> st.SearchStrategy[str]:
    """Names of application properties: 1 to 128 characters, and none that PairMQ's own envelope needs (SPEC 5.7)."""
    return st.text(_CHARACTERS, min_size=1, max_size=MAX_ID_LENGTH).filter(_is_free)


def property_values(*, nested: bool = True) -> st.SearchStrategy[PropertyValue]:
    """Values of application properties, of every type that brokers carry: see `pairmq.model.PropertyValue`.

        @given(property_values())
        def test_my_log_formatter_takes_any_header(value): ...

    Args:
        nested: tuples and mappings of values too, a few levels deep; lists are not drawn, as a message keeps them as
            tuples.
    """
    flat: st.SearchStrategy[PropertyValue] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        _TEXTS,
        st.binary(max_size=40),
        st.floats(allow_nan=False, allow_infinity=False),
        st.builds(_decimal, st.integers(-(2**31), 2**31 - 1), st.integers(0, 255)),
        instants().map(lambda at: at.astimezone(UTC)),
        st.uuids(),
    )
    if not nested:
        return flat
    # Six leaves at most: they never reach the depth that a message refuses.
    return st.recursive(flat, _containers, max_leaves=6)


def messages(
    *,
    with_id: bool | st.SearchStrategy[str] | None = None,
    max_body: int = 64,
    properties: bool | st.SearchStrategy[Mapping[str, PropertyValue]] = True,
    sessions: bool | st.SearchStrategy[str | None] = True,
    ttl: bool | st.SearchStrategy[float | None] = True,
    scheduled: bool | st.SearchStrategy[datetime | None] = True,
    **fixed: st.SearchStrategy[Any],
) -> st.SearchStrategy[Message]:
    """Messages with anything in every field; the simplest has an empty body and nothing else.

        @given(messages(with_id=True, scheduled=False, subject=st.just("order")))
        def test_an_order_is_stored_under_its_id(message): ...

    A field that is named here may be ``True`` (anything, or nothing), ``False`` (always left out) or a strategy of its
    values. Limit what the system under test does not do: in a test that waits for a message, say, an instant in the
    year 9999 is no use (``scheduled=False``).

    Args:
        with_id: ``True`` for always an id, ``False`` for never, None for either; or a strategy of ids.
        max_body: bytes of the body at most.
        properties: the application properties.
        sessions: the session id; a partition key, where there is one, equals it.
        ttl: the time-to-live in seconds.
        scheduled: the instant before which no consumer sees the message.
        fixed: strategies of other fields by their names, such as ``body`` or ``priority``.

    Raises:
        TypeError: ``fixed`` names something that is not a field of a message, or one that has its own argument.
    """
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "body": st.binary(max_size=max_body),
        "message_id": ids() if with_id is True else _chosen(True if with_id is None else with_id, ids()),
        "session_id": _chosen(sessions, ids()),
        "time_to_live": _chosen(ttl, _TIMES_TO_LIVE),
        "scheduled_enqueue_at": _chosen(scheduled, instants()),
        **{name: st.none() | _TEXTS for name in _TEXT_FIELDS},
        "reply_to_session_id": st.none() | ids(),
        "priority": st.none() | st.integers(0, MAX_PRIORITY),
        "application_properties": _properties(properties),
    }
    own = {"message_id", "session_id", "time_to_live", "scheduled_enqueue_at", "application_properties"}
    unknown = sorted(set(fixed) - ({field.name for field in fields(Message)} - own))
    if unknown:
        raise TypeError(f"messages() takes no strategy of {', '.join(unknown)}")
    drawn |= fixed
    return _messages(drawn)


@st.composite
def _messages(draw: st.DrawFn, strategies: dict[str, st.SearchStrategy[Any]]) -> Message:
    values = {name: draw(strategy) for name, strategy in strategies.items()}
    if "partition_key" not in values:
        session = values["session_id"]
        values["partition_key"] = draw(st.none() | (ids() if session is None else st.just(session)))
    return Message(**values)


def _chosen(choice: bool | st.SearchStrategy[Any], values: st.SearchStrategy[T]) -> st.SearchStrategy[T | Any | None]:
    if isinstance(choice, bool):
        return st.none() | values if choice else st.none()
    return choice


def _properties(choice: bool | st.SearchStrategy[Mapping[str, PropertyValue]]) -> st.SearchStrategy[Any]:
    if isinstance(choice, bool):
        return st.dictionaries(property_names(), property_values(), max_size=5 if choice else 0)
    return choice


def _containers(inner: st.SearchStrategy[PropertyValue]) -> st.SearchStrategy[PropertyValue]:
    return st.lists(inner, max_size=3).map(tuple) | st.dictionaries(ids(), inner, max_size=3)


def _is_free(name: str) -> bool:
    # Hypothesis draws words that are in the program under test too, and the aliases are such words.
    return name not in ALIASES


def _decimal(mantissa: int, places: int) -> Decimal:
    return Decimal(mantissa).scaleb(-places)


_AT = datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC)
_REQUIRED = (names.PATH, names.DIVERTED_AT, names.SENDER, names.SEQUENCE)

# Invalid aliases, and why one might write them: to leave the queue's name space, to match more than one entity, to
# overflow, to slip through a parser that is kinder than its rule.
_PATHS = ("", "/", "/a", "a/", "a//b", "..", "../orders", "a/../b", "a/./b", "*", "a?", "[a]", "a\\b")
_NUMBERS = (
    "",
    " 1",
    "1 ",
    "+1",
    "-1",
    "1e3",
    "0x1",
    "1_0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "\u0663",
    "\uff11",
    "9" * 400,
)
_INSTANTS = (
    "",
    "yesterday",
    "1741064767",
    "2024-02-30T00:00:00+00:00",
    "2024-02-29",
    "2024-02-29T00:00:00",
    "2024-02-29T00:00:00+01:00",
    "2016-12-31T23:59:60+00:00",
    "10000-01-01T00:00:00+00:00",
    "-0001-01-01T00:00:00+00:00",
)
_UNPRINTABLE = ("\x00", "\n", "\x1b[2J", "\x7f", "\u202e", "\ufeff", "\u2028")

_NOT_TEXT: st.SearchStrategy[PropertyValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(Decimal(1)),
    st.just(_AT),
    st.just(UUID(int=0)),
    st.just(("orders",)),
    st.just({"x-ms-path": "orders"}),
)


def hostile_properties() -> st.SearchStrategy[dict[str, PropertyValue]]:
    """Application properties of a message on a backlog queue that PairMQ did not put there, or that was damaged.

        @given(hostile_properties())
        def test_my_dead_letter_viewer_shows_anything(properties): ...

    At least one alias of the envelope is missing, of a wrong type, malformed or oversize, so that a syphon has to
    dead-letter the message: control characters, ``../``, wildcards, 300 characters, digits of other scripts, numbers
    and dates out of range. The rest is a good envelope, and any properties besides.
    """
    return _hostile()


def hostile_messages(**limits: Any) -> st.SearchStrategy[Message]:
    """Whole messages with `hostile_properties`, and anything in all other fields.

    Args:
        limits: as in `messages`; ``ttl=False, scheduled=False`` for messages that a syphon sees at once and forever.
    """
    return messages(properties=hostile_properties(), **limits)


@st.composite
def _hostile(draw: st.DrawFn) -> dict[str, PropertyValue]:
    properties = _envelope() | draw(_OTHERS)
    for alias in draw(_SPOILT_ALIASES):
        how = draw(_HOW)
        if how == "missing" and alias in _REQUIRED:
            properties.pop(alias, None)
        elif how == "type":
            properties[alias] = draw(_NOT_TEXT)
        else:
            properties[alias] = draw(_MALFORMED[alias])
    return properties


def _envelope() -> dict[str, PropertyValue]:
    good = Message(session_id="s", time_to_live=1.0, scheduled_enqueue_at=_AT, priority=1)
    envelope: Mapping[str, PropertyValue] = divert(
        good, Diversion(Entity("orders"), _AT, "sender", 1, True)
    ).application_properties
    return dict(envelope)


def _malformed(alias: str) -> st.SearchStrategy[Any]:
    match alias:
        case names.PATH:
            return (
                st.sampled_from(_PATHS) | st.sampled_from((261, 300, 4096)).map(lambda length: "a" * length) | _spoilt()
            )
        case names.DIVERTED_AT | names.SCHEDULED_ENQUEUE:
            return st.sampled_from(_INSTANTS) | _spoilt()
        case names.SEQUENCE | names.TIME_TO_LIVE | names.PRIORITY:
            return st.sampled_from(_NUMBERS) | _spoilt()
        case names.SESSION_ID:
            return st.just("") | st.integers(129, 400).map(lambda length: "s" * length)
        case names.SENDER:
            return st.just("")  # any other text may be the name of a sender
        case _:  # a kind or a mark: one or two words are right, and all else is wrong
            return st.sampled_from(("", "Queue", "TRUE", "true ", "topic\n", "subscription")) | _spoilt()


def _spoilt() -> st.SearchStrategy[str]:
    """Any text with something in it that can't be printed."""
    return st.builds(lambda text, bad: text + bad, ids(), st.sampled_from(_UNPRINTABLE))


# Made once: to make them anew for each example would take longer than to draw from them.
_OTHERS = st.dictionaries(property_names(), property_values(), max_size=2)
_SPOILT_ALIASES = st.lists(st.sampled_from(sorted(ALIASES)), min_size=1, max_size=3, unique=True)
_HOW = st.sampled_from(("missing", "malformed", "type"))
_MALFORMED = {alias: _malformed(alias) for alias in sorted(ALIASES)}
