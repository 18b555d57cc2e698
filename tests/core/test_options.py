"""The options: their defaults, both ends of each range and beyond, wrong types (SPEC 2)."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pairmq.core import OPTION_NAMES, PairOptions
from pairmq.model import ConfigurationError

DEFAULTS: dict[str, Any] = {
    "backlog_queue_count": 10,
    "failover_interval": 10.0,
    "ping_primary_interval": 60.0,
    "enable_syphon": False,
    "while_failing": "wait",
    "send_timeout": 60.0,
    "attempt_timeout": 10.0,
    "ordering": "none",
    "ttl_policy": "restore",
    "failover_on_busy": False,
    "close_grace": 5.0,
    "syphon_receive_wait": 900.0,
    "syphon_batch": 100,
    "syphon_max_rate": None,
    "ping_timeout": 10.0,
    "flap_window": 300.0,
    "backlog_retry_interval": 30.0,
    "backlog_name_template": "{primary}/x-servicebus-transfer/{index}",
    "allowed_entities": (),
    "max_pending_sends": 10_000,
    "control_interval": 15.0,
    "continuity": (),
    "lane_patience": 5.0,
}
# name: lowest, highest, and how an error writes the range
DURATIONS: dict[str, tuple[float, float, str]] = {
    "failover_interval": (0, 3600, "0 s to 60 min"),
    "ping_primary_interval": (0.1, 1800, "100 ms to 30 min"),
    "send_timeout": (0.01, 86_400, "10 ms to 24 h"),
    "attempt_timeout": (0.01, 600, "10 ms to 10 min"),
    "close_grace": (0, 600, "0 s to 10 min"),
    "syphon_receive_wait": (1, 3600, "1 s to 60 min"),
    "ping_timeout": (0.01, 120, "10 ms to 2 min"),
    "flap_window": (0, 86_400, "0 s to 24 h"),
    "backlog_retry_interval": (0.1, 3600, "100 ms to 60 min"),
    "control_interval": (0, 3600, "0 s to 60 min"),
    "lane_patience": (0, 3600, "0 s to 60 min"),
}
COUNTS: dict[str, tuple[int, int]] = {
    "backlog_queue_count": (1, 1000),
    "syphon_batch": (1, 10_000),
    "max_pending_sends": (1, 10_000_000),
}
CHOICES: dict[str, tuple[str, str]] = {
    "while_failing": ("wait", "raise"),
    "ordering": ("none", "session"),
    "ttl_policy": ("restore", "elapse"),
}
SWITCHES = ("enable_syphon", "failover_on_busy")
OTHERS = ("syphon_max_rate", "backlog_name_template", "allowed_entities", "continuity")

durations = pytest.mark.parametrize("name", DURATIONS)
counts = pytest.mark.parametrize("name", COUNTS)
choices = pytest.mark.parametrize("name", CHOICES)


def option(name: str, value: Any) -> Any:
    """The value as the options keep it."""
    return getattr(PairOptions(**{name: value}), name)


def refused(name: str, value: Any) -> str:
    """The error's text."""
    with pytest.raises(ConfigurationError) as caught:
        PairOptions(**{name: value})
    return str(caught.value)


def test_each_option_is_tested_here():
    assert {*DURATIONS, *COUNTS, *CHOICES, *SWITCHES, *OTHERS} == set(OPTION_NAMES)


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_an_option_has_its_default(name: str):
    value = getattr(PairOptions(), name)
    assert (value, type(value)) == (DEFAULTS[name], type(DEFAULTS[name]))


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_a_default_is_what_one_could_have_given_too(name: str):
    assert option(name, DEFAULTS[name]) == DEFAULTS[name]


def test_option_names_are_the_fields_in_their_order():
    assert tuple(entry.name for entry in fields(PairOptions)) == OPTION_NAMES


def test_options_are_given_by_name():
    with pytest.raises(TypeError):
        PairOptions(10)  # type: ignore[misc]


def test_options_can_not_be_changed():
    with pytest.raises(FrozenInstanceError):
        PairOptions().send_timeout = 1.0  # type: ignore[misc]


def test_equal_options_are_equal_values():
    assert PairOptions(send_timeout=5) == PairOptions(send_timeout=timedelta(seconds=5))
    assert hash(PairOptions(allowed_entities=["a"])) == hash(PairOptions(allowed_entities=("a",)))


# ------------------------------------------------------------------------------------------------------- durations


@durations
@pytest.mark.parametrize("end", [0, 1])
def test_both_ends_of_a_duration_are_allowed(name: str, end: int):
    assert option(name, DURATIONS[name][end]) == DURATIONS[name][end]


@durations
@pytest.mark.parametrize("end", [0, 1])
def test_beyond_an_end_the_error_names_the_option_the_value_and_the_range(name: str, end: int):
    beyond = math.nextafter(DURATIONS[name][end], (-math.inf, math.inf)[end])
    text = refused(name, beyond)
    assert text == f"{name} is {beyond!r}: it must be {DURATIONS[name][2]}, in seconds or as a timedelta"


@durations
@pytest.mark.parametrize("end", [0, 1])
def test_a_duration_may_be_a_timedelta_up_to_both_ends(name: str, end: int):
    value = DURATIONS[name][end]
    assert option(name, timedelta(seconds=value)) == value


@durations
@pytest.mark.parametrize("delta", [timedelta(microseconds=-1), timedelta(days=2), timedelta.max, timedelta.min])
def test_a_timedelta_beyond_an_end_is_refused(name: str, delta: timedelta):
    assert refused(name, delta).startswith(f"{name} is {delta!r}")


@durations
def test_a_duration_is_kept_as_a_float(name: str):
    assert type(option(name, int(DURATIONS[name][1]))) is float
    assert type(option(name, timedelta(seconds=1))) is float


@durations
@pytest.mark.parametrize(
    "value",
    [True, False, "10", b"1", None, math.nan, math.inf, -math.inf, -1, 10**400, [1], 1j],
    ids=lambda v: repr(v)[:9],
)
def test_what_is_no_duration_is_refused(name: str, value: Any):
    assert refused(name, value).startswith(f"{name} is {value!r}"[:40])


# ---------------------------------------------------------------------------------------------------------- counts


@counts
@pytest.mark.parametrize("end", [0, 1])
def test_both_ends_of_a_count_are_allowed(name: str, end: int):
    assert option(name, COUNTS[name][end]) == COUNTS[name][end]


@counts
@pytest.mark.parametrize("end", [0, 1])
def test_beyond_an_end_of_a_count_the_error_names_the_option_the_value_and_the_range(name: str, end: int):
    low, high = COUNTS[name]
    value = (low - 1, high + 1)[end]
    assert refused(name, value) == f"{name} is {value}: it must be a whole number from {low} to {high}"


@counts
@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, math.nan, math.inf, timedelta(1), -1, 10**30], ids=repr)
def test_what_is_no_count_is_refused(name: str, value: Any):
    assert refused(name, value).startswith(f"{name} is {value!r}")


# ------------------------------------------------------------------------------------------------ choices, switches


@choices
@pytest.mark.parametrize("which", [0, 1])
def test_each_choice_is_allowed(name: str, which: int):
    assert option(name, CHOICES[name][which]) == CHOICES[name][which]


@choices
@pytest.mark.parametrize("value", ["", "Wait", "none ", "both", None, True, 0, ["wait"], b"none"], ids=repr)
def test_any_other_choice_is_refused_and_the_choices_are_named(name: str, value: Any):
    one, other = CHOICES[name]
    assert refused(name, value) == f"{name} is {value!r}: it must be {one!r} or {other!r}"


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_on_or_off(name: str, value: bool):
    assert option(name, value) is value


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "true", "", None, 1.0], ids=repr)
def test_a_switch_is_nothing_else(name: str, value: Any):
    assert refused(name, value) == f"{name} is {value!r}: it must be True or False"


# ------------------------------------------------------------------------------------------------------------- rate


@pytest.mark.parametrize("rate", [None, 0.001, 1, 1_000_000, math.ulp(0.0)], ids=repr)
def test_a_rate_is_any_number_above_zero_or_none(rate: Any):
    assert option("syphon_max_rate", rate) == rate


@pytest.mark.parametrize("rate", [0, -1, 0.0, math.nan, math.inf, True, "1", timedelta(1)], ids=repr)
def test_what_is_no_rate_is_refused(rate: Any):
    text = refused("syphon_max_rate", rate)
    assert text == f"syphon_max_rate is {rate!r}: it must be a number of messages a second above 0, or None"


# ------------------------------------------------------------------------------------------------------------ names


def test_backlog_queues_are_named_after_the_primary_and_their_index():
    names = PairOptions(backlog_queue_count=3).backlog_queue_names("contoso")
    assert names == tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))


def test_there_are_as_many_names_as_queues_and_no_two_are_alike():
    assert len(set(PairOptions(backlog_queue_count=1000).backlog_queue_names("p"))) == 1000


def test_a_template_may_leave_the_primary_out_and_repeat_the_index():
    names = PairOptions(backlog_queue_count=2, backlog_name_template="q{index}-{index}").backlog_queue_names("contoso")
    assert names == ("q0-0", "q1-1")


@pytest.mark.parametrize(("index", "name"), [("0", "contoso"), ("999", "contoso"), ("1000", None), ("9" * 5000, None)])
def test_a_queue_with_an_index_that_no_pair_has_is_of_no_primary(index, name):
    path = f"contoso/x-servicebus-transfer/{index}"
    assert (PairOptions().is_backlog_queue(path), PairOptions().primary_of_backlog_queue(path)) == (True, name)


@pytest.mark.parametrize("template", ["{index}", "a/{primary}/{index}", "{index}" + "a" * 193])
def test_a_template_that_holds_the_index_is_allowed(template: str):
    assert option("backlog_name_template", template) == template


@pytest.mark.parametrize(
    "template",
    [
        None,
        7,
        b"{index}",
        "",
        "backlog",
        "{primary}",
        "{ index }",
        "{index:03}",
        "{{index}}",
        "{index}}",
        "{index}{other}",
        "{index}" + "a" * 194,
        "/{index}",
        "{primary}/",
        "{primary}//{index}",
        "../{index}",
        "a/../{index}",
        "*{index}",
        "a[{index}]",
        "a\n{index}",
    ],
    ids=repr,
)
def test_a_template_that_could_not_name_queues_is_refused(template: Any):
    assert refused("backlog_name_template", template).startswith("backlog_name_template is ")


# --------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize("path", ["orders", "a/b", "x" * 260, "ORDERS"])
def test_without_patterns_every_path_is_admitted(path: str):
    assert PairOptions().allows(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("orders", "orders"),
        ("prices/*", "prices/eu"),
        ("prices/*", "prices/eu/de"),
        ("q?", "q1"),
        ("*", "a/b"),
        ("*s", "s"),
    ],
)
def test_a_pattern_admits_what_it_describes(pattern: str, path: str):
    assert PairOptions(allowed_entities=(pattern,)).allows(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("orders", "orders2"),
        ("orders", "my/orders"),
        ("orders", "Orders"),
        ("orders", "orders\n"),
        ("prices/*", "prices"),
        ("q?", "q"),
        ("q?", "q12"),
        ("a.b", "aXb"),
        ("(a|b)", "a"),
    ],
)
def test_a_pattern_admits_nothing_else(pattern: str, path: str):
    assert not PairOptions(allowed_entities=(pattern,)).allows(path)


def test_one_of_several_patterns_is_enough():
    options = PairOptions(allowed_entities=("orders", "prices/*"))
    assert [options.allows(path) for path in ("orders", "prices/x", "other")] == [True, True, False]


@pytest.mark.parametrize("given_as", [["b", "a"], ("b", "a")])
def test_a_sequence_of_patterns_keeps_its_order(given_as: Any):
    assert option("allowed_entities", given_as) == ("b", "a")


@pytest.mark.parametrize("given_as", [{"b", "a"}, frozenset("ba")])
def test_a_set_of_patterns_is_sorted(given_as: Any):
    assert option("allowed_entities", given_as) == ("a", "b")


@pytest.mark.parametrize("value", [None, "orders", b"orders", 7, {"a": 1}, [""], ["a", None], [b"a"]], ids=repr)
def test_what_is_no_sequence_of_patterns_is_refused(value: Any):
    assert refused("allowed_entities", value).startswith(f"allowed_entities is {value!r}: it must be a sequence of")


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("name", ["allowed_entities", "continuity"])
def test_a_pattern_that_could_match_no_path_is_refused(name: str):
    assert refused(name, ("orders", "[a")).endswith("a sequence of patterns that close each '[' by a ']'")
    assert option(name, ("[ab]", "a")) == ("[ab]", "a")


def test_a_bad_option_is_a_value_error():
    with pytest.raises(ValueError, match="send_timeout"):
        PairOptions(send_timeout=0)


def test_a_long_value_is_cut_in_the_error():
    assert len(refused("while_failing", "x" * 10_000)) < 200


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.timedeltas(), st.lists(st.text())
)


@given(st.sampled_from(OPTION_NAMES), anything)
def test_any_value_is_kept_or_refused_by_name(name: str, value: Any):
    complaint = f"{name} is "
    try:
        PairOptions(**{name: value})
    except ConfigurationError as error:
        complaint = str(error)
    assert complaint.startswith(f"{name} is ")


# ------------------------------------------------------------------------------------- which names are backlog queues


@given(st.sampled_from(["{primary}/x-servicebus-transfer/{index}", "q.{index}", "{index}-of-{primary}"]))
def test_each_name_that_the_template_gives_is_a_backlog_queues(template: str):
    options = PairOptions(backlog_name_template=template, backlog_queue_count=1000)
    assert [name for name in options.backlog_queue_names("contoso") if not options.is_backlog_queue(name)] == []


@pytest.mark.parametrize(
    "path", ["other/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/5000", "a/b/x-servicebus-transfer/7"]
)
def test_another_primarys_queues_and_extra_ones_are_backlog_queues_too(path: str):
    assert PairOptions().is_backlog_queue(path)


@pytest.mark.parametrize(
    "path",
    [
        "orders",
        "contoso/x-servicebus-transfer",
        "contoso/x-servicebus-transfer/x",
        "contoso/x-servicebus-transfer/1/2",
        "contoso/x-servicebus-transferX1",
        "x-servicebus-transfer/1",
    ],
)
def test_a_path_that_the_template_does_not_give_is_no_backlog_queues(path: str):
    assert not PairOptions().is_backlog_queue(path)


def test_the_letters_of_a_template_stand_for_themselves():
    assert not PairOptions(backlog_name_template="q.{index}").is_backlog_queue("qx1")
