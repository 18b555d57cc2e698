"""The pair's record: what is written, what is read of anything, and what differs (SPEC 13)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq import PairOptions
from pairmq.core.record import Configuration, Record, conflict_text

OWN = Configuration.of("contoso", ("product", "h", "1"), "", PairOptions())


def read(*configurations: Configuration) -> Record:
    return Record.read([each.message().body for each in configurations])


@pytest.mark.parametrize("identity", [("p", "h", "1", "/"), ("p", "日本", "", "\udcff", "x" * 999), ("p",)])
@pytest.mark.parametrize("scope", ["", "web-1-0123"])
def test_a_configuration_reads_as_it_was_written(identity: tuple[str, ...], scope: str) -> None:
    own = Configuration.of("contoso", identity, scope, PairOptions(backlog_queue_count=3, ordering="session"))
    assert read(own, own) == Record((own,), copies=1)
    assert own.message() == own.message()


def test_equal_configurations_have_equal_ids() -> None:
    assert OWN.message().message_id == replace(OWN).message().message_id
    assert OWN.message().message_id != replace(OWN, queues=3).message().message_id


def test_long_parts_of_an_identity_stay_different() -> None:
    one, two = (Configuration.of("c", ("p", "x" * 400 + end), "", PairOptions()) for end in "ab")
    assert one.identity != two.identity


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 10_000, "not JSON"),
        (b'{"pairmq_record": NaN}', "not JSON"),
        (b"x" * 20_000, "more than"),
        (b"[]", "malformed"),
        (b"{}", "malformed"),
        (b'{"pairmq_record": true}', "malformed"),
        (b'{"pairmq_record": 0}', "malformed"),
        (b'{"pairmq_record": ' + b"9" * 4000 + b"}", "malformed"),
        (b'{"pairmq_record": 2, "kind": "configuration"}', "format 2"),
        (b'{"pairmq_record": 1, "kind": "configuration"}', "malformed"),
    ],
)
def test_what_can_not_be_read_is_a_problem(body: bytes, said: str) -> None:
    record = Record.read([body, OWN.message().body, body])
    assert record.configurations == (OWN,)
    assert len(record.problems) == 1
    assert said in record.problems[0]


def test_what_a_later_release_adds_is_passed_over() -> None:
    content = json.loads(OWN.message().body)
    bodies = [json.dumps({**content, **more}).encode() for more in ({"new": [1]}, {"kind": "switch", "hold": ["q"]})]
    assert Record.read(bodies) == Record((OWN,))


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("primary", [None, [], {"name": "", "identity": ["p"]}, {"name": "a\n", "identity": ["p"]}]),
        (
            "primary",
            [{"name": "c", "identity": []}, {"name": "c", "identity": [1]}, {"name": "a//b", "identity": ["p"]}],
        ),
        ("primary", [{"name": "c", "identity": ["p"] * 17}, {"name": "c" * 301, "identity": ["p"]}, {"name": "c"}]),
        ("backlog", [{"template": "{primary}/{index}", "queues": each} for each in (0, 1001, True, "3", 1.0, 10**99)]),
        (
            "backlog",
            [{"template": each, "queues": 3} for each in ("", "x", "{index}{x}", "*{index}", 3, "{index}" * 60)],
        ),
        ("ordering", [None, "", "other", 1]),
    ],
)
def test_a_forged_configuration_is_a_problem(part: str, values: list[object]) -> None:
    content = json.loads(OWN.message().body)
    for value in values:
        assert Record.read([json.dumps({**content, part: value}).encode()]).problems, value


@given(
    st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b'{"pairmq_record":1}', b"1", b"null"])), max_size=5)
)
def test_any_bytes_are_read_without_an_error(bodies: list[bytes]) -> None:
    assert Record.read(bodies).configurations == ()


def test_queues_that_others_use_are_known() -> None:
    own = replace(OWN, queues=3)
    other = Configuration("contoso", OWN.identity, "{primary}/other/{index}", 1, "none")
    record = read(own, replace(OWN, queues=5), other, replace(own, template="app-{index}"))
    assert record.other_queues(own) == (
        "contoso/x-servicebus-transfer/3",
        "contoso/x-servicebus-transfer/4",
        "contoso/other/0",
    )
    assert record.most_queues(own) == 5


def test_a_record_adds_no_queue_that_is_not_the_primarys() -> None:
    forged = [replace(OWN, template="orders-{index}"), replace(OWN, name="other"), replace(OWN, identity=("p", "x"))]
    assert read(*forged).other_queues(OWN) == ()
    many = [replace(OWN, queues=1000, template=f"{{primary}}/{number}/{{index}}") for number in range(9)]
    assert len(read(*many).other_queues(OWN)) == 1000


def test_another_identity_is_a_conflict() -> None:
    other = replace(OWN, identity=("product", "h", "2"))
    assert read(OWN, other).conflict(OWN) == other
    assert read(OWN).conflict(OWN) is None
    assert "?name=" in conflict_text(OWN, other)
    assert "?identity=" in conflict_text(OWN, other)


def test_primaries_that_share_a_template_without_their_names_get_an_error_that_says_how_to_change_it() -> None:
    own = replace(OWN, template="failover-{index}")
    other = replace(own, name="fabrikam", identity=("product", "h", "2"))
    assert read(own, other).conflict(own) == other
    text = conflict_text(own, other)
    assert "template 'failover-{index}' for another primary" in text
    assert "put {primary} into backlog_name_template" in text
    assert "?name=" not in text


def test_differences_name_the_option_and_both_values() -> None:
    assert read(OWN).differences(OWN) == ()
    for other, named in (
        (replace(OWN, queues=3), ("backlog_queue_count", "10", "3")),
        (replace(OWN, template="x/{index}"), ("backlog_name_template", OWN.template, "x/{index}")),
        (replace(OWN, ordering="session"), ("ordering", "'none'", "'session'")),
    ):
        (text,) = read(OWN, other).differences(OWN)
        assert all(each in text for each in named)


def test_pairs_that_share_queues_share_a_record() -> None:
    literal = replace(OWN, name="fabrikam", template="contoso/x-servicebus-transfer/{index}")
    assert set(OWN.places) & set(literal.places)
    one, two = (replace(OWN, name=name, template="backlog-{index}") for name in ("contoso", "fabrikam"))
    assert set(one.places) & set(two.places)
    assert len(OWN.places) == 1
    assert len(one.places) == 2
    assert not set(OWN.places) & set(replace(OWN, name="fabrikam").places)


def test_a_name_too_long_for_a_record_has_none() -> None:
    assert replace(OWN, name="x" * 250, template="{primary}/{index}").places == ()


def test_the_record_is_no_destination() -> None:
    assert all(PairOptions().is_backlog_queue(place.path) for place in OWN.places)
    assert not PairOptions().is_backlog_queue("orders")
