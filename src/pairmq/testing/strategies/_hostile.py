"""What somebody else may put on a backlog queue: envelopes that must be set aside as poison (SPEC 7.4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from pairmq.core import ALIASES, Diversion, divert
from pairmq.core import envelope as names
from pairmq.model import Entity, Message, PropertyValue
from pairmq.testing.strategies._messages import ids, messages, property_names, property_values

_AT = datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC)
_REQUIRED = (names.PATH, names.DIVERTED_AT, names.SENDER, names.SEQUENCE)

# Texts that no alias takes, and why somebody would write them: to leave the queue's name space, to match more than one
# entity, to overflow, to slip through a parser that is kinder than its rule.
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
        limits: as in `messages`; ``ttl=False, scheduled=False`` for messages that a syphon sees at once and for ever.
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
