"""Hypothesis strategies for messages, options, faults, and for what others may put on a backlog queue.

    from hypothesis import given
    from pairmq.testing import strategies as pst

    @given(pst.messages())
    def test_my_codec_restores_what_it_encoded(message): ...

Everything shrinks to the simplest thing of its kind: a message to an empty one without properties, options to short
durations and the first choice, a plan of faults to no fault. Needs hypothesis: ``pip install 'pairmq[testing]'``; no
other module of the test kit but `pairmq.testing.machine` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

try:
    from hypothesis import strategies as st
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the strategies need hypothesis: install it with: pip install 'pairmq[testing]'", name="hypothesis"
    ) from None

from pairmq.core import ALIASES, OPTION_NAMES, Diversion, PairOptions, divert
from pairmq.core import envelope as names
from pairmq.core.options import _CHOICES, _COUNTS, _DURATIONS, _SWITCHES
from pairmq.model import (
    MAX_ID_LENGTH,
    MAX_PATH_LENGTH,
    MAX_PRIORITY,
    MAX_TIME_TO_LIVE,
    Entity,
    EntityKind,
    Message,
    PropertyValue,
)
from pairmq.testing.history import PRIMARY, SECONDARY
from pairmq.testing.simulator import FAULT_KINDS, Fault, Setup, _scenario

__all__ = [
    "entities",
    "entity_paths",
    "fault_plans",
    "hostile_messages",
    "hostile_properties",
    "ids",
    "instants",
    "messages",
    "options",
    "property_names",
    "property_values",
]

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


# Seconds and counts that let a test see each option at work soon: (lowest, highest).
_SHORT: dict[str, tuple[float, float]] = {
    "failover_interval": (0.0, 3.0),
    "ping_primary_interval": (0.1, 5.0),
    "send_timeout": (1.0, 20.0),
    "attempt_timeout": (0.1, 2.0),
    "close_grace": (0.0, 2.0),
    "syphon_receive_wait": (1.0, 10.0),
    "ping_timeout": (0.1, 2.0),
    "flap_window": (0.0, 10.0),
    "backlog_retry_interval": (0.1, 5.0),
    "control_interval": (1.0, 15.0),
    "lane_patience": (0.0, 5.0),
}
_FEW: dict[str, tuple[int, int]] = {
    "backlog_queue_count": (1, 4),
    "syphon_batch": (1, 20),
    "max_pending_sends": (1, 1000),
}
_TEMPLATES = ("{primary}/x-servicebus-transfer/{index}", "backlog.{index}", "{index}-of-{primary}")


def options(*, small: bool = True, **fixed: Any) -> st.SearchStrategy[PairOptions]:
    """Options that a pair takes; the simplest has short durations, and the first choice of everything.

        @given(options(enable_syphon=True, failover_interval=st.sampled_from([0, 1])))
        def test_my_service_starts_with_any_options(options): ...

    Args:
        small: short durations and few queues, so that tests are fast; else the whole range of each option.
        fixed: options by name: a value, or a strategy of values.

    Raises:
        TypeError: ``fixed`` names no option.
    """
    unknown = sorted(set(fixed) - set(OPTION_NAMES))
    if unknown:
        raise TypeError(f"no option {', '.join(unknown)}: known are {', '.join(OPTION_NAMES)}")
    drawn = {name: _drawn(name, small) for name in OPTION_NAMES}
    drawn |= {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()}
    return st.builds(PairOptions, **drawn)


def _drawn(name: str, small: bool) -> st.SearchStrategy[Any]:
    if name in _DURATIONS:
        low, high = _SHORT[name] if small else _DURATIONS[name]
        # Whole milliseconds shrink to something that a person can read.
        return st.integers(round(low * 1000), round(high * 1000)).map(lambda milliseconds: milliseconds / 1000)
    if name in _COUNTS:
        return st.integers(*(_FEW if small else _COUNTS)[name])
    if name in _SWITCHES:
        return st.booleans()
    if name in _CHOICES:
        # Not every secondary can keep order, and a pair rejects those: pass it explicitly for one that can.
        return st.just("none") if name == "ordering" else st.sampled_from(_CHOICES[name])
    if name == "syphon_max_rate":
        return st.none() | st.integers(1, 10_000).map(float)
    if name == "backlog_name_template":
        return st.sampled_from(_TEMPLATES) | entity_paths(max_length=20).map(_template)
    if name == "allowed_entities":
        patterns = st.sampled_from(("*", "orders", "prices/*", "queue-?")) | entity_paths(max_length=20)
        # A pair rejects entities that don't match: pass them explicitly if only some are used.
        return st.just(()) | st.lists(patterns, max_size=3).map(lambda drawn: (*drawn, "*"))
    if name == "continuity":
        # It excludes topics and ordering="session": pass it explicitly.
        return st.just(())
    raise AssertionError(f"the option {name} is new: say here what it may be")


def _template(path: str) -> str:
    return path.replace("{", "(").replace("}", ")") + "-{index}"


# What a path takes is what Python calls printable: nothing of the categories C and Z, but the space.
_LETTERS = st.characters(exclude_categories=("C", "Z"), include_characters=" ", exclude_characters="*?[]\\/")


def entity_paths(*, max_length: int = 60) -> st.SearchStrategy[str]:
    """Paths that `pairmq.Entity` takes: segments of any printable letters, separated by ``/``.

        @given(entity_paths())
        def test_a_path_becomes_a_file_name(path): ...

    Args:
        max_length: characters, 1 to 260; a broker's lower limit is in its transport's capabilities.

    Raises:
        ValueError: ``max_length`` is out of its range.
    """
    if not 1 <= max_length <= MAX_PATH_LENGTH:
        raise ValueError(f"max_length is {max_length}: 1 to {MAX_PATH_LENGTH} are allowed")
    segments = st.text(_LETTERS, min_size=1, max_size=max_length).filter(lambda segment: segment not in (".", ".."))
    joined = st.lists(segments, min_size=1, max_size=5).map("/".join)
    return joined.filter(lambda path: len(path) <= max_length)


def entities(
    *, kinds: Iterable[EntityKind] = EntityKind, paths: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Entity]:
    """Queues and topics.

        @given(entities(kinds=[EntityKind.QUEUE]))
        def test_every_queue_has_a_line_in_my_report(queue): ...

    Args:
        kinds: of which shapes; both when left out.
        paths: their paths, `entity_paths` when left out.
    """
    return st.builds(Entity, entity_paths() if paths is None else paths, st.sampled_from(tuple(kinds)))


_LONGEST_BLIP = 0.7  # s

_SEEDS = st.integers(0, 2**31 - 1)
_BY_INSTANT = attrgetter("at")


def fault_plans(
    setup: Setup, *, seconds: float, kinds: Collection[str] = FAULT_KINDS, max_size: int = 6
) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Plans of what goes wrong in a simulation, by their instant; the simplest is that nothing does.

        quiet = scenario_of(Settings(seed=1, hours=0.05, faults=()))

        @given(fault_plans(quiet.setup, seconds=quiet.seconds))
        def test_any_plan_is_survived(plan):
            report = replay(replace(quiet, faults=plan))
            assert report.ok, report.text()

    Args:
        setup: the brokers, processes and entities that the faults may strike.
        seconds: the length of the simulation, within which they begin.
        kinds: of `pairmq.testing.simulator.FAULT_KINDS`.
        max_size: faults at most.
    """
    faults = st.sampled_from(sorted(kinds)).flatmap(lambda kind: _faults(kind, setup, seconds))
    return st.lists(faults, max_size=max_size if kinds else 0).map(lambda plan: tuple(sorted(plan, key=_BY_INSTANT)))


@st.composite
def _faults(draw: st.DrawFn, kind: str, setup: Setup, seconds: float) -> Fault:
    """One fault, struck where the world can strike it."""
    processes = [process.name for process in setup.processes]
    broker = process = entity = ""
    if kind in _scenario.OF_A_PROCESS:
        process = draw(st.sampled_from(processes))
    else:
        brokers = (PRIMARY, SECONDARY, "") if kind in _scenario.BLIPS else (PRIMARY, SECONDARY)
        broker = SECONDARY if kind in _scenario.OF_THE_SECONDARY else draw(st.sampled_from(brokers))
        if kind not in _scenario.OF_ALL_PROCESSES:
            process = draw(st.sampled_from(("", *processes)))
    if kind in _scenario.OF_A_QUEUE or (kind not in _scenario.OF_A_WHOLE_BROKER and draw(st.booleans())):
        entity = draw(st.sampled_from(_paths(setup, broker)))
    return Fault(
        at=draw(_thousandths(0.0, seconds)),
        kind=kind,
        duration=draw(_thousandths(0.1, _LONGEST_BLIP) if kind in _scenario.BLIPS else _thousandths(0.3, 60.0)),
        broker=broker,
        process=process,
        entity=entity,
        share=draw(st.integers(0, 8).map(lambda tenths: 1.0 - tenths / 10)),
        delay=draw(_thousandths(0.05, 20.0)) if kind in _scenario.DELAYING else 0.0,
        seed=draw(_SEEDS),
    )


def _thousandths(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(round(low * 1000), max(round(low * 1000), round(high * 1000) - 1)).map(lambda n: n / 1000)


def _paths(setup: Setup, broker: str) -> list[str]:
    if broker != SECONDARY:
        return [entity.rpartition(":")[2] for entity in setup.entities]
    queues = setup.pair_options(syphon=False).backlog_queue_names(PRIMARY)
    return list(queues)
