"""The envelope: `restore(divert(m)) == m`, and nothing that stands in a backlog queue is trusted (SPEC 5.6 to 5.8)."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from pairmq.core import ALIASES, Diversion, divert, restore
from pairmq.core.envelope import elapsed_time_to_live, reserved_properties
from pairmq.model import MAX_PRIORITY, MAX_TIME_TO_LIVE, Entity, EntityKind, EnvelopeError, Message
from patient_examples import examples

AT = datetime(2025, 3, 4, 5, 6, 7, 890123, UTC)
DIVERSION = Diversion(Entity("orders"), AT, "sender-1", 7)
FULL = Message(
    body=b"\x00body\xff",
    message_id="m-1",
    session_id="s-1",
    time_to_live=0.000001,
    scheduled_enqueue_at=AT + timedelta(days=1),
    content_type="text/plain",
    content_encoding="gzip",
    correlation_id="c",
    subject="s",
    to="t",
    reply_to="r",
    reply_to_session_id="rs",
    partition_key="s-1",
    priority=0,
    application_properties={
        "b": True,
        "i": 1,
        "f": 1.0,
        "x": b"1",
        "t": "1",
        "u": UUID(int=1),
        "d": AT,
        "n": None,
        "m": Decimal("1.10"),
        "s": (1, True, ({"k": 1.0},)),
    },
)

# ------------------------------------------------------------------------------------------------------- strategies

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)))
# Any zone's instants of these years are instants of the years 1 to 9999 in UTC too.
first, last = datetime.fromisoformat("0001-01-03"), datetime.fromisoformat("9999-12-29")
instants = st.datetimes(first, last, timezones=st.just(UTC) | zones)
decimals = st.builds(
    lambda mantissa, scale: Decimal(f"{mantissa}E-{scale}"), st.integers(-(2**31), 2**31 - 1), st.integers(0, 255)
)
flat_values = st.one_of(
    st.none(),
    decimals,
    texts,
    st.binary(max_size=40),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    instants,
    st.uuids(),
)
# Six leaves at most: they never reach the depth that a message refuses.
values = st.recursive(
    flat_values,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(ids, inner, max_size=3)
    ),
    max_leaves=6,
)
keys = ids.filter(lambda key: key not in ALIASES)
times_to_live = st.one_of(
    st.floats(0.000001, MAX_TIME_TO_LIVE),
    st.integers(1, int(MAX_TIME_TO_LIVE)),
    st.timedeltas(timedelta(microseconds=1), timedelta(days=10_675_199)),
)

# Made once: to make a strategy takes longer than to draw from it.
optional_texts, optional_ids, optional_instants = st.none() | texts, st.none() | ids, st.none() | instants
optional_times_to_live, priorities = st.none() | times_to_live, st.none() | st.integers(0, MAX_PRIORITY)
bodies, properties = st.binary(max_size=60), st.dictionaries(keys, values, max_size=6)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    session = draw(optional_ids)
    return Message(
        body=draw(bodies),
        message_id=draw(optional_ids),
        session_id=session,
        time_to_live=draw(optional_times_to_live),  # type: ignore[arg-type]
        scheduled_enqueue_at=draw(optional_instants),
        content_type=draw(optional_texts),
        content_encoding=draw(optional_texts),
        correlation_id=draw(optional_texts),
        subject=draw(optional_texts),
        to=draw(optional_texts),
        reply_to=draw(optional_texts),
        reply_to_session_id=draw(optional_ids),
        partition_key=draw(optional_ids if session is None else st.sampled_from((None, session))),
        priority=draw(priorities),
        application_properties=draw(properties),
    )


paths = st.lists(
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="*?[]\\/"), min_size=1, max_size=20).filter(
        lambda segment: segment not in (".", "..")
    ),
    min_size=1,
    max_size=5,
).map("/".join)
diversions = st.builds(
    Diversion,
    entity=st.builds(Entity, paths, st.sampled_from(EntityKind)),
    diverted_at=instants,
    sender_id=ids,
    sequence=st.integers(0, 2**63 - 1),
    maybe_duplicate=st.booleans(),
)


def typed(message: Message) -> list[Any]:
    """All field and property values with their types, which `==` does not compare: True == 1 == 1.0."""
    return [(f.name, typed_value(getattr(message, f.name))) for f in fields(message)[:-1]] + [
        (name, typed_value(value)) for name, value in message.application_properties.items()
    ]


def typed_value(value: Any) -> Any:
    if isinstance(value, dict):
        return dict, [(name, typed_value(entry)) for name, entry in value.items()]
    if isinstance(value, tuple):
        return tuple, [typed_value(entry) for entry in value]
    return type(value), value.as_tuple() if isinstance(value, Decimal) else value


# ------------------------------------------------------------------------------------------------------- round trip


@given(messages(), diversions)
@example(FULL, DIVERSION)
@example(Message(), DIVERSION)
@example(Message(priority=0), DIVERSION)
@example(Message(priority=255), DIVERSION)
@example(Message(time_to_live=MAX_TIME_TO_LIVE), DIVERSION)
@example(Message(time_to_live=0.1 + 0.2), DIVERSION)
@example(Message(scheduled_enqueue_at=datetime(1, 1, 1, tzinfo=UTC)), DIVERSION)
@example(Message(scheduled_enqueue_at=datetime.max.replace(tzinfo=UTC)), DIVERSION)
@example(Message(scheduled_enqueue_at=datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=UTC)), DIVERSION)
@example(Message(session_id="1\x00\n é\U0001f600"), DIVERSION)
def test_restoring_is_the_exact_inverse_of_diverting(message: Message, diversion: Diversion):
    restored, _ = restore(divert(message, diversion))
    assert restored == message
    assert typed(restored) == typed(message)


@given(messages(), diversions)
@example(FULL, DIVERSION)
def test_what_the_envelope_adds_comes_back(message: Message, diversion: Diversion):
    _, told = restore(divert(message, diversion))
    assert told == diversion


@settings(max_examples=examples(50))
@given(messages(), diversions)
def test_nothing_acts_on_a_message_while_it_is_in_the_backlog(message: Message, diversion: Diversion):
    parked = divert(message, diversion)
    acting = (parked.session_id, parked.time_to_live, parked.scheduled_enqueue_at, parked.priority)
    assert acting == (None, None, None, None)


@settings(max_examples=examples(50))
@given(messages(), diversions)
def test_an_envelope_is_text_only(message: Message, diversion: Diversion):
    parked = divert(message, diversion)
    assert {type(value) for name, value in parked.application_properties.items() if name in ALIASES} == {str}


@settings(max_examples=examples(50))
@given(messages(), diversions)
def test_diverting_leaves_the_message_as_it_was(message: Message, diversion: Diversion):
    before = typed(message)
    divert(message, diversion)
    assert typed(message) == before


@settings(max_examples=examples(50))
@given(messages(), diversions)
def test_all_else_travels_as_it_is(message: Message, diversion: Diversion):
    parked = divert(message, diversion)
    cleared = {"session_id", "time_to_live", "scheduled_enqueue_at", "priority", "application_properties"}
    kept = [f.name for f in fields(message) if f.name not in cleared]
    assert [getattr(parked, name) for name in kept] == [getattr(message, name) for name in kept]
    assert {
        k: v for k, v in parked.application_properties.items() if k not in ALIASES
    } == message.application_properties


def test_the_envelope_reads_as_published():
    assert divert(FULL, DIVERSION._replace(maybe_duplicate=True)).application_properties == {
        **FULL.application_properties,
        "x-ms-sessionid": "s-1",
        "x-ms-timetolive": "0.000001",
        "x-ms-scheduledenqueuetimeutc": "2025-03-05T05:06:07.890123+00:00",
        "x-ms-path": "orders",
        "x-pairmq-diverted-at": "2025-03-04T05:06:07.890123+00:00",
        "x-pairmq-sender": "sender-1",
        "x-pairmq-sequence": "7",
        "x-pairmq-maybe-duplicate": "true",
        "x-pairmq-priority": "0",
    }


def test_only_what_a_message_has_is_in_its_envelope():
    assert set(divert(Message(), DIVERSION).application_properties) == {
        "x-ms-path",
        "x-pairmq-diverted-at",
        "x-pairmq-sender",
        "x-pairmq-sequence",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.0, "1"), (0.1, "0.1"), (100.0, "100"), (0.000001, "0.000001"), (MAX_TIME_TO_LIVE, "922337193600")],
)
def test_a_time_to_live_is_a_plain_decimal(seconds: float, text: str):
    parked = divert(Message(time_to_live=seconds), DIVERSION)
    assert parked.application_properties["x-ms-timetolive"] == text


def test_a_priority_is_a_plain_number():
    for priority in range(256):
        parked = divert(Message(priority=priority), DIVERSION)
        assert parked.application_properties["x-pairmq-priority"] == str(priority)
        assert restore(parked)[0].priority == priority


@given(instants)
def test_instants_are_written_in_utc(at: datetime):
    parked = divert(Message(scheduled_enqueue_at=at), DIVERSION._replace(diverted_at=at))
    for alias in ("x-ms-scheduledenqueuetimeutc", "x-pairmq-diverted-at"):
        assert str(parked.application_properties[alias]).endswith("+00:00")


# -------------------------------------------------------------------------------------------------- reserved names


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_a_message_with_an_alias_of_its_own_is_refused(alias: str):
    with pytest.raises(ValueError, match=alias):
        divert(Message(application_properties={alias: "mine"}), DIVERSION)


def test_all_aliases_of_a_message_are_named_in_order():
    message = Message(application_properties={"x-pairmq-sender": "a", "other": 1, "x-ms-path": "b"})
    assert reserved_properties(message) == ("x-ms-path", "x-pairmq-sender")


@settings(max_examples=examples(50))
@given(messages())
def test_no_other_property_is_reserved(message: Message):
    assert reserved_properties(message) == ()


def test_a_message_is_not_diverted_twice():
    with pytest.raises(ValueError, match="x-ms-path"):
        divert(divert(FULL, DIVERSION), DIVERSION)


# ----------------------------------------------------------------------------------------------- forged or malformed

GOOD = dict(divert(FULL, DIVERSION._replace(maybe_duplicate=True)).application_properties)
REQUIRED = ("x-ms-path", "x-pairmq-diverted-at", "x-pairmq-sender", "x-pairmq-sequence")
NOT_TEXT: tuple[Any, ...] = (True, False, 1, 0, 1.5, b"1", b"", AT, UUID(int=0), None, Decimal(1), ("1",), {"1": "1"})
BAD_TEXT: dict[str, tuple[str, ...]] = {
    "x-ms-path": (
        "",
        "..",
        "../orders",
        "a/../b",
        "a/./b",
        "/a",
        "a/",
        "a//b",
        "a" * 261,
        "a" * 300,
        "a\nb",
        "a\x00b",
        "a\x7fb",
        "a\u202eb",
        "*",
        "a?",
        "[a]",
        "a\\b",
    ),
    "x-pairmq-kind": ("", "Queue", "subscription", "queue ", "topic\n"),
    "x-pairmq-diverted-at": (
        "",
        "yesterday",
        "2025-03-04",
        "2025-03-04T05:06:07",
        "2025-03-04T05:06:07+01:00",
        "2025-02-30T00:00:00+00:00",
        "10000-01-01T00:00:00+00:00",
        "-0001-01-01T00:00:00+00:00",
        "1741064767",
        "nan",
        "2025-03-04T05:06:07+00:00 ",
        "٢٠٢٥-03-04T05:06:07+00:00",
    ),
    "x-pairmq-sender": ("",),
    "x-pairmq-sequence": ("", "-1", "+1", "1.0", "1e3", "nan", "inf", " 1", "1\n", "٣", "1_000", "0x1", "9" * 20),
    "x-pairmq-maybe-duplicate": ("", "false", "True", "1", "true "),
    "x-pairmq-priority": (
        "",
        "256",
        "999",
        "-1",
        "-0",
        "+1",
        "00",
        "01",
        "1.0",
        "1e1",
        "0x1",
        " 1",
        "1\n",
        "1_0",
        "٣",
        "\uff11",
        "9" * 400,
    ),
    "x-ms-sessionid": ("", "s" * 129, "another than the partition key"),
    "x-ms-timetolive": (
        "",
        "0",
        "0.0000001",
        "-1",
        "+1",
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "1e9",
        " 1",
        "1 ",
        "1\n",
        "1,5",
        "1.",
        ".5",
        "٣",
        "\uff11",
        "1_0",
        "00:01:00",
        "1.2345678",
        "922337193601",
        "9" * 15,
        "9" * 16,
        "9" * 400,
    ),
}
BAD_TEXT["x-ms-scheduledenqueuetimeutc"] = BAD_TEXT["x-pairmq-diverted-at"]


def with_alias(alias: str, value: Any) -> Message:
    return Message(partition_key="s-1", application_properties=GOOD | {alias: value})


def test_each_alias_has_bad_values_here():
    assert set(BAD_TEXT) == ALIASES


def test_the_good_envelope_that_the_bad_ones_vary_is_good():
    restored, _ = restore(Message(partition_key="s-1", application_properties=GOOD))
    assert restored.session_id == "s-1"


@pytest.mark.parametrize("alias", REQUIRED)
def test_a_missing_alias_is_named(alias: str):
    left = {name: value for name, value in GOOD.items() if name != alias}
    with pytest.raises(EnvelopeError, match=alias):
        restore(Message(application_properties=left))


@pytest.mark.parametrize("value", NOT_TEXT, ids=repr)
@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_that_is_no_text_is_named(alias: str, value: Any):
    with pytest.raises(EnvelopeError, match=alias):
        restore(with_alias(alias, value))


@pytest.mark.parametrize(
    ("alias", "text"), [(a, t) for a, ts in sorted(BAD_TEXT.items()) for t in ts], ids=lambda value: ascii(value)[:30]
)
def test_an_alias_with_a_malformed_text_is_named(alias: str, text: str):
    with pytest.raises(EnvelopeError, match=alias):
        restore(with_alias(alias, text))


@pytest.mark.parametrize("alias", sorted(ALIASES - {"x-pairmq-sender"}))  # a sender's id may be any text
def test_an_error_does_not_repeat_what_is_in_the_queue(alias: str):
    with pytest.raises(EnvelopeError) as caught:
        restore(with_alias(alias, "?[hunter2" * 20))
    assert "hunter2" not in str(caught.value)


def test_a_message_that_was_never_diverted_is_refused():
    with pytest.raises(EnvelopeError, match="x-ms-path is missing: PairMQ did not send this message"):
        restore(Message(b"stray", application_properties={"mine": 1}))


any_properties = st.dictionaries(
    st.sampled_from(sorted(ALIASES)) | ids,
    values
    | st.sampled_from([text for texts in BAD_TEXT.values() for text in texts])
    | st.sampled_from([*GOOD.values()]),
    max_size=12,
)


@given(any_properties, st.none() | ids)
def test_arbitrary_properties_raise_envelope_error_or_nothing(properties: dict[str, Any], partition_key: str | None):
    message = Message(partition_key=partition_key, application_properties=properties)
    try:
        restore(message)
    except EnvelopeError:
        return
    # If it passed, it is a message like any other.
    again, _ = restore(divert(*restore(message)))
    assert again == restore(message)[0]


@given(st.sampled_from(sorted(ALIASES)), values)
def test_one_forged_alias_raises_envelope_error_or_nothing(alias: str, value: Any):
    try:
        restored, _ = restore(with_alias(alias, value))
    except EnvelopeError:
        return
    assert ALIASES.isdisjoint(restored.application_properties)


@given(st.text(st.characters(categories=["Nd", "P"]), max_size=20))
def test_digits_of_other_scripts_are_no_numbers(text: str):
    for alias in ("x-ms-timetolive", "x-pairmq-sequence", "x-pairmq-priority"):
        try:
            restore(with_alias(alias, text))
        except EnvelopeError:
            continue
        assert text.isascii()


def test_an_envelopes_words_override_what_the_backlog_broker_says():
    parked = divert(Message(b"x"), DIVERSION)
    received = replace(parked, session_id="the broker's", time_to_live=5.0, scheduled_enqueue_at=AT, priority=9)
    restored, _ = restore(received)
    assert restored == Message(b"x")


# ------------------------------------------------------------------------------------------------ elapsed time-to-live


@pytest.mark.parametrize(("waited", "left"), [(0, 10.0), (4, 6.0), (10, 0.0), (15, -5.0)])
def test_the_time_in_the_backlog_counts_where_asked_for(waited: float, left: float):
    message = Message(time_to_live=10)
    assert elapsed_time_to_live(message, DIVERSION, AT + timedelta(seconds=waited)) == left


@pytest.mark.parametrize(
    ("due", "waited", "left"), [(3600, 600, 10.0), (3600, 3604, 6.0), (2, 6, 6.0), (-3600, 4, 6.0)]
)
def test_the_time_of_a_scheduled_message_begins_when_it_is_due(due: float, waited: float, left: float):
    message = Message(time_to_live=10, scheduled_enqueue_at=AT + timedelta(seconds=due))
    assert elapsed_time_to_live(message, DIVERSION, AT + timedelta(seconds=waited)) == left


def test_a_clock_that_went_back_gives_no_time_away():
    assert elapsed_time_to_live(Message(time_to_live=10), DIVERSION, AT - timedelta(hours=1)) == 10.0


def test_a_message_without_a_time_to_live_never_expires():
    assert elapsed_time_to_live(Message(), DIVERSION, AT + timedelta(days=9999)) is None
