"""The strategies draw what they promise: everything that is allowed, nothing that is not, and the simplest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from pairmq import Entity, EntityKind, Message, PairOptions
from pairmq.core import ALIASES, OPTION_NAMES, restore
from pairmq.core.options import _COUNTS, _DURATIONS
from pairmq.model import EnvelopeError
from pairmq.testing import strategies as pst
from pairmq.testing.history import PRIMARY
from pairmq.testing.simulator import FAULT_KINDS, Settings, scenario_of
from pairmq.testing.strategies import _MALFORMED, _is_free

SEARCH = settings(
    database=None,
    max_examples=5000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],  # to explain what was found would take longest
)
ANY = settings(SEARCH, phases=[Phase.generate])
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For a busy machine: how long an example takes says nothing here."""

DEFAULTS = PairOptions()
SETUP = scenario_of(Settings(seed=3, hours=0.01)).setup


def minimal(strategy: st.SearchStrategy[Any], condition: Any = lambda value: True) -> Any:
    """The simplest value of some kind."""
    return find(strategy, condition, settings=SEARCH)


def drawn(strategy: st.SearchStrategy[Any], condition: Any) -> Any:
    """Some value of some kind, or NoSuchExample."""
    return find(strategy, condition, settings=ANY)


def not_drawn(
    strategy: st.SearchStrategy[Any], wanted: Iterable[Any], seen: Callable[[Any], Iterable[Any]]
) -> set[Any]:
    """Which of some things no example shows: one search for all of them."""
    left = set(wanted)

    def enough(value: Any) -> bool:
        left.difference_update(seen(value))
        return not left

    with suppress(NoSuchExample):
        drawn(strategy, enough)
    return left


# ----------------------------------------------------------------------------------------------------------- messages


def test_every_field_of_a_message_is_drawn():
    def differing(message: Message) -> list[str]:
        return [name for name in names if getattr(message, name) != getattr(Message(), name)]

    names = [field.name for field in fields(Message)]
    assert not_drawn(pst.messages(), names, differing) == set()


def test_the_simplest_message_is_empty():
    assert minimal(pst.messages()) == Message()


def test_every_type_of_property_is_drawn_as_a_message_keeps_it():
    def kept(value: Any) -> list[type]:
        it = Message(application_properties={"it": value}).application_properties["it"]
        return [type(value)] if (type(it), it) == (type(value), value) else []

    kinds = [type(None), bool, int, str, bytes, float, Decimal, datetime, UUID, tuple, dict]
    assert not_drawn(pst.property_values(), kinds, kept) == set()


@PATIENT
@given(pst.property_values(nested=False))
def test_flat_values_hold_no_others(value: Any):
    assert not isinstance(value, tuple | Mapping)


@PATIENT
@given(pst.messages(with_id=True, sessions=False, ttl=False, scheduled=False, properties=False, max_body=3))
def test_limited_fields_keep_to_their_limits(message: Message):
    assert message.message_id
    assert len(message.body) <= 3
    assert (message.session_id, message.time_to_live, message.scheduled_enqueue_at) == (None, None, None)
    assert not message.application_properties


@PATIENT
@given(pst.messages(with_id=False, subject=st.just("order"), sessions=st.just("s"), body=st.just(b"b")))
def test_fixed_fields_are_as_they_were_fixed(message: Message):
    assert (message.message_id, message.subject, message.session_id, message.body) == (None, "order", "s", b"b")
    assert message.partition_key in (None, "s")


@pytest.mark.parametrize("name", ["colour", "message_id", "time_to_live"])
def test_a_name_that_is_none_of_the_other_fields_is_refused(name: str):
    with pytest.raises(TypeError, match=name):
        pst.messages(**{name: st.none()})


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_no_property_has_a_name_that_the_envelope_needs(alias: str):
    assert not _is_free(alias)
    assert _is_free(f"{alias}-2")


@PATIENT
@given(pst.instants())
def test_instants_know_their_zone_and_are_instants_in_utc(at: datetime):
    assert at.astimezone(UTC) == at


# ----------------------------------------------------------------------------------------------------------- entities


@PATIENT
@given(pst.entity_paths(max_length=12))
def test_paths_keep_to_their_length_and_are_paths(path: str):
    assert len(path) <= 12
    assert Entity(path).path == path


@pytest.mark.parametrize("length", [0, 261])
def test_a_length_that_no_path_has_is_refused(length: int):
    with pytest.raises(ValueError, match="1 to 260"):
        pst.entity_paths(max_length=length)


def test_paths_of_several_segments_and_other_scripts_are_drawn():
    assert minimal(pst.entity_paths(), lambda path: "/" in path) == "0/0"
    assert drawn(pst.entity_paths(), lambda path: not path.isascii())


@pytest.mark.parametrize("kind", EntityKind)
def test_both_kinds_of_entities_are_drawn(kind: EntityKind):
    assert drawn(pst.entities(), lambda entity: entity.kind is kind).kind is kind


@PATIENT
@given(pst.entities(kinds=[EntityKind.TOPIC], paths=st.just("news")))
def test_entities_are_of_the_kinds_and_paths_asked_for(entity: Entity):
    assert entity == Entity("news", EntityKind.TOPIC)


# ------------------------------------------------------------------------------------------------------------ options


# Not every secondary can keep order, and continuity excludes topics: these two are never drawn.
@pytest.mark.parametrize("small", [True, False])
def test_every_option_is_drawn(small: bool):
    def differing(options: PairOptions) -> list[str]:
        return [name for name in OPTION_NAMES if getattr(options, name) != getattr(DEFAULTS, name)]

    wanted = set(OPTION_NAMES) - {"ordering", "continuity"}
    assert not_drawn(pst.options(small=small), wanted, differing) == set()


@pytest.mark.parametrize("name", [*_DURATIONS, *_COUNTS])
@pytest.mark.parametrize("end", [0, 1])
def test_the_whole_range_of_an_option_is_drawn(name: str, end: int):
    bound = {**_DURATIONS, **_COUNTS}[name][end]
    others = {other: getattr(DEFAULTS, other) for other in OPTION_NAMES if other != name}
    strategy = pst.options(small=False, **others)
    assert drawn(strategy, lambda options: getattr(options, name) == pytest.approx(bound, rel=0.5, abs=0.5))


@PATIENT
@given(pst.options(failover_interval=0, enable_syphon=st.just(True)))
def test_fixed_options_are_as_they_were_fixed(options: PairOptions):
    assert (options.failover_interval, options.enable_syphon) == (0.0, True)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="colour"):
        pst.options(colour="red")


# ------------------------------------------------------------------------------------------------- hostile properties


@PATIENT
@given(pst.hostile_messages())
def test_every_hostile_message_is_poison(message: Message):
    with pytest.raises(EnvelopeError):
        restore(message)


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_each_alias_is_spoilt_alone(alias: str):
    def tells(properties: dict[str, Any]) -> bool:
        try:
            restore(Message(application_properties=properties))
        except EnvelopeError as error:
            return alias in str(error)
        return False

    assert drawn(pst.hostile_properties(), tells)


def test_paths_that_would_lead_elsewhere_are_drawn():
    kinds: dict[str, Callable[[str], bool]] = {
        "parent": lambda path: "../" in path,
        "wildcard": lambda path: "*" in path,
        "oversize": lambda path: len(path) >= 300,
        "unprintable": lambda path: not path.isprintable(),
    }
    # Of this alias alone: that a message has it, malformed in one of these ways, is one of a thousand examples.
    malformed = _MALFORMED["x-ms-path"]
    assert not_drawn(malformed, kinds, lambda path: [name for name, tells in kinds.items() if tells(path)]) == set()


# ------------------------------------------------------------------------------------------------------------- faults


def test_every_kind_of_fault_is_planned():
    plans = pst.fault_plans(SETUP, seconds=60)
    assert not_drawn(plans, FAULT_KINDS, lambda plan: {fault.kind for fault in plan}) == set()


def test_the_simplest_plan_is_that_nothing_goes_wrong():
    assert minimal(pst.fault_plans(SETUP, seconds=60)) == ()


@PATIENT
@given(pst.fault_plans(SETUP, seconds=60, kinds=["hang", "kill", "queue-out"], max_size=3))
def test_a_plan_strikes_what_there_is(plan: tuple[Any, ...]):
    queues = SETUP.pair_options(syphon=False).backlog_queue_names(PRIMARY)
    paths = {entity.rpartition(":")[2] for entity in SETUP.entities}
    assert len(plan) <= 3
    assert list(plan) == sorted(plan, key=lambda fault: fault.at)
    for fault in plan:
        assert fault.kind in ("hang", "kill", "queue-out")
        assert 0 <= fault.at < 60
        assert 0 < fault.share <= 1
        assert fault.process in ("", *(process.name for process in SETUP.processes))
        assert fault.entity in ({"", *paths} if fault.broker != "secondary" else {"", *queues})


# -------------------------------------------------------------------------------------------------------- the package
