"""What settled messages add to the judgement of others, and when they have to be judged again, without Spark."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairmq.pipeline.follow import _settled
from pairmq.pipeline.follow._settled import (
    _ARRIVALS,
    _JUDGED,
    _MESSAGES,
    Context,
    Piece,
    destinations,
    rolled,
    stood_in,
)

MESSAGE = st.fixed_dictionaries(
    {
        # Most are of one lane, or few would meet.
        "place": st.sampled_from([1, 1, 1, 2]),
        "sender": st.sampled_from([1, 1, 1, 2]),
        "placed": st.sampled_from([1, 1, 0]),
        "got_first_by": st.sampled_from([1, 1, 2]),
        "position": st.integers(1, 12),
        "called_at": st.floats(0, 20, width=16),
        "accepted_at": st.floats(0, 20, width=16),
        "route": st.sampled_from([None, "a", "b"]),
    }
)


def told(position, called_at, route, accepted_at=20.0):
    alike = {"place": 1, "sender": 1, "placed": 1, "got_first_by": 1}
    return alike | {"position": position, "called_at": called_at, "accepted_at": accepted_at, "route": route}


def table(messages):
    """Their facts, and their routes: those with a route were accepted by the backlog."""
    rows = [
        {
            **dict.fromkeys(_MESSAGES.names),
            "message_key": number,
            "message_id": f"m{number}",
            "deliveries": 1,
            **{name: value for name, value in message.items() if name != "route"},
            "got_first_by_other": message["got_first_by"],
            "accepted_primary": 0 if message["route"] else 1,
            "arrived_at": message["accepted_at"],
            "delivered_at": message["accepted_at"] + 1,
            "last_delivered_at": message["accepted_at"] + 1,
        }
        for number, message in messages
    ]
    found = pa.Table.from_pylist(rows, _MESSAGES)
    return found.append_column("route", pa.array([message["route"] for _, message in messages], pa.string()))


def piece_of(folder, messages, late=None, minutes=((1, 7),)):
    rows = table(messages)
    judged = pa.Table.from_pylist([{"verdict": "delivered", "late": late} for _ in messages], _JUDGED)
    arrivals = pa.Table.from_pylist([{"place": place, "minute": minute} for place, minute in minutes], _ARRIVALS)
    _settled.write_messages(folder, rows)
    return _settled.write_piece(folder, rows, judged, rolled(arrivals), _settled.frontier(rows))


def lane(message):
    return message["place"], message["sender"], 0 if message["placed"] else message["got_first_by"]


def lateness(message, world):
    """By what it was overtaken, as the step ``late`` has it: of its lane, and of its backlog queue in that."""
    ahead = [other for other in world if lane(other) == lane(message) and other["position"] < message["position"]]
    queue = [other for other in ahead if other["route"] == message["route"]] if message["route"] else []
    called = [max((other["called_at"] for other in some), default=-1.0) for some in (ahead, queue)]
    return [at if at > message["accepted_at"] else None for at in called]


@settings(deadline=None)
@given(st.lists(st.tuples(MESSAGE, st.sampled_from([-2, -1, 0, 0, 1])), max_size=14))
@example([(told(1, 9.0, None), 0), (told(2, 8.0, "a"), 0), (told(3, 7.0, "b"), 0), (told(5, 4.0, "b", 3.0), -2)])
def test_with_settled_messages_aside_each_is_as_late_as_among_all(drawn):
    # -2: it is new, -1: it was judged before, else the piece that it is in.
    numbered = [(number, message, where) for number, (message, where) in enumerate(drawn)]
    everything = [message for message, _ in drawn]
    before = [message for message, where in drawn if where != -2]
    with tempfile.TemporaryDirectory() as folder:
        shut = {}
        for where in range(2):
            if own := [(number, message) for number, message, its in numbered if its == where]:
                (Path(folder) / str(where)).mkdir()
                shut[where] = piece_of(Path(folder) / str(where), own)
        judged = [(number, message) for number, message, where in numbered if where < 0]
        stood = stood_in(table(judged))
        changed = stood_in(table([(number, message) for number, message, where in numbered if where == -2]))
        while opened := [where for where, piece in shut.items() if piece.is_among(stood, changed)]:
            for where in opened:
                del shut[where]
            more = [(number, message) for number, message, its in numbered if its in opened]
            judged += more
            stood, changed = stood_in(table(more)), {}
        by_number = {number: message for number, message, _ in numbered}
        ahead = [by_number[key] for piece in shut.values() for key in piece.frontier["message_key"].to_pylist()]
    for _, message in judged:
        assert lateness(message, [each for _, each in judged] + ahead) == lateness(message, everything)
    for _, message, where in numbered:
        if where in shut:
            assert lateness(message, before) == lateness(message, everything)


@settings(deadline=None)
@given(st.lists(MESSAGE, max_size=14))
def test_what_is_settled_is_behind_nothing_that_is_not(drawn):
    with_margin = destinations(table(list(enumerate(drawn))), [], patience=-_settled.MARGIN / 2 + 3.0)
    for number, message in enumerate(drawn):
        same = [
            with_margin[other] >= 0
            for other, its in enumerate(drawn)
            if (its["place"], its["placed"]) == (message["place"], message["placed"])
            and its["position"] <= message["position"]
        ]
        assert with_margin[number] < 0 or all(same)
    old = [message["accepted_at"] < max(each["accepted_at"] for each in drawn) - 6 for message in drawn]
    assert all(is_old for is_old, found in zip(old, with_margin, strict=True) if found >= 0)


def test_messages_that_were_settled_get_back_to_their_piece_and_others_stay(tmp_path):
    message = told(5, 4.0, None, 5.0)
    piece = piece_of(tmp_path, [(3, message), (9, message)])
    assert [piece.has(np.array(keys)) for keys in ([3], [2, 9], [4], [-1, 10], [])] == [True, True, False, False, False]
    found = destinations(table([(9, message), (4, message), (3, message)]), [piece], patience=300.0)
    assert found.tolist() == [0, -1, 0]


def test_of_many_messages_the_first_to_be_delivered_are_settled_first(monkeypatch):
    monkeypatch.setattr(_settled, "AT_MOST", 4)
    monkeypatch.setattr(_settled, "IN_A_PIECE", 3)
    messages = [(number, told(number, 0.0, None, float(number))) for number in (7, 0, 3, 1, 9999, 2)]
    assert destinations(table(messages), [], patience=0.0).tolist() == [-1, 0, 1, 0, -1, 0]


ARRIVAL = st.fixed_dictionaries(
    {
        "place": st.integers(1, 2),
        "session": st.sampled_from([None, 1, 2]),
        "sender": st.sampled_from([None, 5]),
        "minute": st.integers(1, 3),
        "messages": st.integers(1, 5),
        "delivered": st.integers(0, 5),
        **{name: st.sampled_from([None, 1.0, 2.0, 3.0]) for name in _ARRIVALS.names[6:]},
    }
)


@given(st.lists(ARRIVAL), st.lists(ARRIVAL))
def test_arrivals_that_were_rolled_up_are_rolled_up_again_with_others(one, other):
    def known(*some):
        together = pa.concat_tables(rolled(each) for each in some)
        return [row for row in rolled(together).to_pylist() if row["minute"] is not None or row["delivered"]]

    parts = [pa.Table.from_pylist(each, _ARRIVALS) for each in (one, other)]
    assert sorted(map(str, known(*parts))) == sorted(map(str, known(pa.concat_tables(parts))))
    both = one + other
    assert sum(row["messages"] for row in known(*parts)) == sum(row["messages"] for row in both)
    assert sum(row["delivered"] for row in known(*parts)) == sum(row["delivered"] for row in both)


CONTEXT = Context(300.0, 1.0, frozenset(), frozenset(), frozenset({(1, 3)}))


def changed(**values):
    return dataclasses.replace(CONTEXT, **values)


def test_a_piece_is_judged_again_where_what_it_was_judged_by_changes(tmp_path):
    message = told(5, 4.0, None, 5.0)
    asked = {
        "nothing": CONTEXT,
        "patience": changed(patience=60.0),
        "samples": changed(least_kept=0.5),
        "order": changed(strict=frozenset({1})),
        "clock": changed(clocks=frozenset({("p", 2.0)})),
        "hole filled": changed(untold=frozenset()),
        "hole elsewhere": changed(untold=frozenset({(1, 3), (2, 7), (1, 8)})),
        "hole": changed(untold=frozenset({(1, 3), (1, 7)})),
    }
    found = {}
    for late in (None, "designed", "fault"):
        folder = tmp_path / str(late)
        folder.mkdir()
        piece = piece_of(folder, [(3, message)], late, minutes=((1, 3), (1, 7)))
        found[late] = {what for what, context in asked.items() if context.concerns(piece, CONTEXT)}
    always = {"patience", "samples", "hole filled", "hole"}
    assert found == {None: always, "designed": {*always, "order"}, "fault": {*always, "order", "clock"}}


def test_a_context_that_was_kept_is_the_same(tmp_path):
    context = changed(strict=frozenset({4}), clocks=frozenset({("p", 0.25)}), least_kept=None)
    (tmp_path / "context.json").write_text(context.to_json())
    assert Context.kept(tmp_path / "context.json") == context
    assert Context.kept(tmp_path / "another.json") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", "[300.0, 1.0, 7, [], []]", '{"rows": 1}'])
def test_what_is_damaged_is_named(tmp_path, text):
    for name, opened in (("context.json", Context.kept), ("piece.json", lambda path: Piece(path.parent))):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
            opened(tmp_path / name)


def test_a_stop_of_the_pump_concerns_late_messages_that_were_in_the_backlog_then(tmp_path):
    messages = [(1, told(5, 4.0, "a", 50.0)), (2, told(5, 4.0, "a", 70.0))]
    for late, instants, concerned in (
        ("designed", [60.0], True),
        ("designed", [49.5, 200.0], True),
        ("designed", [48.5, 71.5], False),
        (None, [60.0], False),
    ):
        with tempfile.TemporaryDirectory() as folder:
            assert _settled.struck(piece_of(Path(folder), messages, late), instants) is concerned
